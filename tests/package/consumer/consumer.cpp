#include <terrace/core/units.h>

#include <cstdio>

int main() { std::puts(terrace::format_bytes(3 * terrace::kGiB / 2).c_str()); }
