#pragma once

#include <filesystem>
#include <string>

namespace terrace::io {

/// What to do about a call that failed with `code`: the place of `path`, where that is given, that
/// is full or limited, and the remedy. The end of a sentence, from its semicolon on; empty where
/// there is none to give.
[[nodiscard]] std::string advice(int code, const std::filesystem::path& path = {});

}  // namespace terrace::io
