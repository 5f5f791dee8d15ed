// A library to be preloaded into the program: it lets one chosen system call fail, or kills the
// program before or after it. Whoever makes the call and however, libc, liburing or a library under
// it, a seccomp filter turns it into SIGSYS, whose handler counts, and makes the call itself.
//
// Which calls are trapped is also decided by where the instruction lies: in any object that was
// loaded when this library began, but itself and the dynamic loader. So the handler's own calls
// pass. And so does what the loader does when the program starts itself anew: the filter stays, but
// the addresses that it knows mean nothing any more. The new image installs its own, and counts
// from 0.
//
// What to do stands in the environment; injection.h says what the variables mean.
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "injection_report.h"

namespace {

using terrace::tools::testing::InjectionReport;

constexpr int kNone = -1;

/// A system call and where its arguments name files: a descriptor, or a path and the descriptor of
/// the folder that it begins in.
struct Call {
  const char* family;
  std::uint32_t number;
  int descriptor = kNone;
  int folder = kNone;
  int path = kNone;
  int flags = kNone;  ///< of an open
  int second_folder = kNone;
  int second_path = kNone;
};

constexpr Call kCalls[] = {
    {.family = "write", .number = SYS_write, .descriptor = 0},
    {.family = "write", .number = SYS_pwrite64, .descriptor = 0},
    {.family = "write", .number = SYS_writev, .descriptor = 0},
    {.family = "write", .number = SYS_pwritev, .descriptor = 0},
    {.family = "write", .number = SYS_pwritev2, .descriptor = 0},
    {.family = "write", .number = SYS_sendfile, .descriptor = 0},
    {.family = "write", .number = SYS_copy_file_range, .descriptor = 2},
    {.family = "read", .number = SYS_read, .descriptor = 0},
    {.family = "read", .number = SYS_pread64, .descriptor = 0},
    {.family = "read", .number = SYS_readv, .descriptor = 0},
    {.family = "fsync", .number = SYS_fsync, .descriptor = 0},
    {.family = "fsync", .number = SYS_fdatasync, .descriptor = 0},
    {.family = "fsync", .number = SYS_sync_file_range, .descriptor = 0},
    {.family = "fsync", .number = SYS_syncfs, .descriptor = 0},
    {.family = "close", .number = SYS_close, .descriptor = 0},
    {.family = "flock", .number = SYS_flock, .descriptor = 0},
    {.family = "fcntl", .number = SYS_fcntl, .descriptor = 0},
    {.family = "fallocate", .number = SYS_fallocate, .descriptor = 0},
    {.family = "truncate", .number = SYS_ftruncate, .descriptor = 0},
    {.family = "truncate", .number = SYS_truncate, .path = 0},
    {.family = "open", .number = SYS_open, .path = 0, .flags = 1},
    {.family = "open", .number = SYS_openat, .folder = 0, .path = 1, .flags = 2},
    {.family = "open", .number = SYS_creat, .path = 0},
    {.family = "rename", .number = SYS_rename, .path = 0, .second_path = 1},
    {.family = "rename",
     .number = SYS_renameat,
     .folder = 0,
     .path = 1,
     .second_folder = 2,
     .second_path = 3},
    {.family = "rename",
     .number = SYS_renameat2,
     .folder = 0,
     .path = 1,
     .second_folder = 2,
     .second_path = 3},
    {.family = "link", .number = SYS_link, .path = 0, .second_path = 1},
    {.family = "link",
     .number = SYS_linkat,
     .folder = 0,
     .path = 1,
     .second_folder = 2,
     .second_path = 3},
    {.family = "link", .number = SYS_symlink, .path = 1},
    {.family = "link", .number = SYS_symlinkat, .folder = 1, .path = 2},
    {.family = "unlink", .number = SYS_unlink, .path = 0},
    {.family = "unlink", .number = SYS_unlinkat, .folder = 0, .path = 1},
    {.family = "unlink", .number = SYS_rmdir, .path = 0},
    {.family = "mkdir", .number = SYS_mkdir, .path = 0},
    {.family = "mkdir", .number = SYS_mkdirat, .folder = 0, .path = 1},
    {.family = "io_uring_enter", .number = SYS_io_uring_enter},
    {.family = "io_uring_register", .number = SYS_io_uring_register},
    {.family = "io_uring_setup", .number = SYS_io_uring_setup},
};

/// Of this family are those opens that may change a file.
constexpr std::string_view kOpenToWrite = "open_to_write";

enum class Fault { error, kill_before, kill_after, stop };

/// What to do, read once from the environment. The handler cannot be given it otherwise.
struct Orders {
  std::vector<std::string> families;
  std::vector<std::string> below;
  std::uint64_t nth = 0;
  std::uint64_t times = 1;
  Fault fault = Fault::error;
  int error = EIO;
  InjectionReport* report = nullptr;
};
// Never destroyed: calls are trapped to the very end.
Orders& orders = *new Orders;

bool ordered(std::string_view family) {
  for (const std::string& wanted : orders.families) {
    if (wanted == family) return true;
  }
  return false;
}

/// Makes the call from this library's own text, which the filter lets pass.
long make_call(long number, const long (&arguments)[6]) {
  long result = number;
  register long r10 asm("r10") = arguments[3];
  register long r8 asm("r8") = arguments[4];
  register long r9 asm("r9") = arguments[5];
  asm volatile("syscall"
               : "+a"(result)
               : "D"(arguments[0]), "S"(arguments[1]), "d"(arguments[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

/// A path that is put together without the heap: the handler may have interrupted anything.
class Path {
 public:
  void append(const char* text) {
    while (*text != '\0' && size_ + 1 < sizeof(text_)) text_[size_++] = *text++;
    text_[size_] = '\0';
  }
  void append_number(unsigned value) {
    char digits[16] = {};
    int at = 15;
    do digits[--at] = static_cast<char>('0' + value % 10);
    while ((value /= 10) != 0);
    append(digits + at);
  }
  /// Where `link`, below /proc, leads.
  void append_target(const char* link) {
    const long result = make_call(
        SYS_readlink, {reinterpret_cast<long>(link), reinterpret_cast<long>(text_ + size_),
                       static_cast<long>(sizeof(text_) - size_ - 1), 0, 0, 0});
    if (result > 0) size_ += static_cast<std::size_t>(result);
    text_[size_] = '\0';
  }
  void append_descriptor(int descriptor) {
    Path link;
    link.append("/proc/self/fd/");
    link.append_number(static_cast<unsigned>(descriptor));
    append_target(link.text());
  }
  [[nodiscard]] const char* text() const { return text_; }

  [[nodiscard]] bool is_below_ordered() const {
    if (orders.below.empty()) return true;
    for (const std::string& folder : orders.below) {
      const std::size_t size = folder.size();
      if (std::strncmp(text_, folder.c_str(), size) != 0) continue;
      if (text_[size] == '\0' || text_[size] == '/') return true;
    }
    return false;
  }

 private:
  char text_[4096] = {};
  std::size_t size_ = 0;
};

void append_path(Path& path, const long (&arguments)[6], int folder, int at) {
  const char* text = reinterpret_cast<const char*>(arguments[at]);
  if (text == nullptr) return;
  if (*text != '/') {
    const int descriptor = folder == kNone ? AT_FDCWD : static_cast<int>(arguments[folder]);
    if (descriptor == AT_FDCWD) {
      path.append_target("/proc/self/cwd");
    } else {
      path.append_descriptor(descriptor);
    }
    path.append("/");
  }
  path.append(text);
}

bool may_change_file(const Call& call, const long (&arguments)[6]) {
  if (call.flags == kNone) return true;
  return (arguments[call.flags] & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0;
}

/// Whether the call is one of those ordered; if so, `place` says which and on what.
bool matches(const Call& call, const long (&arguments)[6], Path& place) {
  const bool opens = std::strcmp(call.family, "open") == 0;
  if (!ordered(call.family) &&
      !(opens && ordered(kOpenToWrite) && may_change_file(call, arguments))) {
    return false;
  }
  place.append(call.family);
  place.append(" ");
  if (call.descriptor == kNone && call.path == kNone) return true;  // it names no file
  Path first;
  if (call.descriptor != kNone) {
    first.append_descriptor(static_cast<int>(arguments[call.descriptor]));
  } else {
    append_path(first, arguments, call.folder, call.path);
  }
  bool below = first.is_below_ordered();
  place.append(first.text());
  if (call.second_path != kNone) {
    Path second;
    append_path(second, arguments, call.second_folder, call.second_path);
    below = below || second.is_below_ordered();
    place.append(" ");
    place.append(second.text());
  }
  return below;
}

void send_to_process(int signal) {
  const long process = make_call(SYS_getpid, {0, 0, 0, 0, 0, 0});
  make_call(SYS_kill, {process, signal, 0, 0, 0, 0});
}

[[noreturn]] void kill_process() {
  send_to_process(SIGKILL);
  while (true) make_call(SYS_pause, {0, 0, 0, 0, 0, 0});
}

/// Counts the call; whether it is one that the fault strikes.
bool is_struck(const Path& place) {
  InjectionReport& report = *orders.report;
  const std::uint64_t count = report.seen.fetch_add(1) + 1;
  if (orders.nth == 0 || count < orders.nth) return false;
  if (orders.times != 0 && count >= orders.nth + orders.times) return false;
  if (report.struck.fetch_add(1) == 0) {
    std::strncpy(report.place, place.text(), sizeof(report.place) - 1);
  }
  return true;
}

long carry_out(const Call& call, const long (&arguments)[6]) {
  Path place;
  if (!matches(call, arguments, place) || !is_struck(place)) {
    return make_call(call.number, arguments);
  }
  if (orders.fault == Fault::error) return -orders.error;
  if (orders.fault == Fault::stop) {
    send_to_process(SIGSTOP);
    return make_call(call.number, arguments);
  }
  if (orders.fault == Fault::kill_after) make_call(call.number, arguments);
  kill_process();
}

void on_trap(int, siginfo_t* information, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const long arguments[6] = {registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                             registers[REG_R10], registers[REG_R8],  registers[REG_R9]};
  const auto number = static_cast<std::uint32_t>(information->si_syscall);
  for (const Call& call : kCalls) {
    if (call.number == number) {
      registers[REG_RAX] = carry_out(call, arguments);
      return;
    }
  }
}

/// Where the instructions of an object lie; not across a multiple of 4 GiB, as the filter sees
/// addresses in halves.
struct Text {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

int collect_texts(dl_phdr_info* object, std::size_t, void* into) {
  auto& texts = *static_cast<std::vector<Text>*>(into);
  const std::string_view name = object->dlpi_name;
  const bool is_loader =
      name.find("ld-linux") != std::string_view::npos || name.starts_with("linux-vdso");
  if (is_loader) return 0;
  const auto own = reinterpret_cast<std::uint64_t>(&make_call);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    Text text{object->dlpi_addr + part.p_vaddr, object->dlpi_addr + part.p_vaddr + part.p_memsz};
    if (text.begin <= own && own < text.end) continue;
    const std::uint64_t boundary = text.end >> 32 << 32;
    if (text.begin < boundary && boundary < text.end) {
      texts.push_back({text.begin, boundary});
      text.begin = boundary;
    }
    texts.push_back(text);
  }
  return 0;
}

void load_word(std::vector<sock_filter>& program, std::size_t offset) {
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)));
}

std::vector<sock_filter> make_filter() {
  std::vector<std::uint32_t> numbers;
  for (const Call& call : kCalls) {
    const bool opens = std::strcmp(call.family, "open") == 0;
    if (ordered(call.family) || (opens && ordered(kOpenToWrite))) numbers.push_back(call.number);
  }
  std::vector<Text> texts;
  dl_iterate_phdr(collect_texts, &texts);

  const sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_filter trap = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
  constexpr std::size_t kAddress = offsetof(seccomp_data, instruction_pointer);
  std::vector<sock_filter> program;
  load_word(program, offsetof(seccomp_data, arch));
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
  program.push_back(allow);
  load_word(program, offsetof(seccomp_data, nr));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto to_texts = static_cast<std::uint8_t>(numbers.size() - i);
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], to_texts, 0));
  }
  program.push_back(allow);
  for (const Text& text : texts) {
    const auto high = static_cast<std::uint32_t>(text.begin >> 32);
    const auto first = static_cast<std::uint32_t>(text.begin);
    const auto last = static_cast<std::uint32_t>(text.end - 1);
    load_word(program, kAddress + 4);
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high, 0, 4));
    load_word(program, kAddress);
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first, 0, 2));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, last, 1, 0));
    program.push_back(trap);
  }
  program.push_back(allow);
  return program;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

int errno_of(const std::string& name) {
  for (int code = 1; code < 256; ++code) {
    const char* known = strerrorname_np(code);
    if (known != nullptr && name == known) return code;
  }
  return 0;
}

InjectionReport* map_report(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  void* mapped = MAP_FAILED;
  if (::ftruncate(file, sizeof(InjectionReport)) == 0) {
    mapped = ::mmap(nullptr, sizeof(InjectionReport), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  ::close(file);
  return mapped == MAP_FAILED ? nullptr : new (mapped) InjectionReport;
}

[[noreturn]] void refuse(const char* what) {
  (void)!::write(STDERR_FILENO, what, std::strlen(what));
  ::_exit(125);
}

bool install() {
  orders.families = parts_of(variable("TERRACE_INJECT_CALLS"), ',');
  orders.below = parts_of(variable("TERRACE_INJECT_BELOW"), ':');
  orders.nth = std::strtoull(variable("TERRACE_INJECT_NTH").c_str(), nullptr, 10);
  const std::string times = variable("TERRACE_INJECT_TIMES");
  if (!times.empty()) orders.times = std::strtoull(times.c_str(), nullptr, 10);
  const std::string fault = variable("TERRACE_INJECT_FAULT");
  if (fault == "kill-before" || fault == "kill-after") {
    orders.fault = fault == "kill-before" ? Fault::kill_before : Fault::kill_after;
  } else if (fault == "stop") {
    orders.fault = Fault::stop;
  } else if (!fault.empty()) {
    orders.error = errno_of(fault);
  }
  if (orders.families.empty() || orders.error == 0)
    refuse("injection: no calls, or no such error\n");
  orders.report = map_report(variable("TERRACE_INJECT_REPORT"));
  if (orders.report == nullptr) refuse("injection: the report cannot be mapped\n");

  struct sigaction action = {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  std::vector<sock_filter> program = make_filter();
  sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  const bool allowed = ::sigaction(SIGSYS, &action, nullptr) == 0 &&
                       ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                       ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
  orders.report->installed = allowed ? 1 : 0;
  return allowed;
}

[[maybe_unused]] const bool installed = install();

/// The mask without the trap's signal: a call of a thread that blocks it would end the process.
int set_mask(int how, const sigset_t* set, sigset_t* before) {
  sigset_t allowed;
  if (set != nullptr) {
    allowed = *set;
    if (how != SIG_UNBLOCK) sigdelset(&allowed, SIGSYS);
    set = &allowed;
  }
  constexpr long kKernelSetBytes = 8;
  return static_cast<int>(-make_call(
      SYS_rt_sigprocmask,
      {how, reinterpret_cast<long>(set), reinterpret_cast<long>(before), kKernelSetBytes, 0, 0}));
}

}  // namespace

// In the place of libc's, which the program calls by these names.
extern "C" int pthread_sigmask(int how, const sigset_t* set, sigset_t* before) noexcept {
  return set_mask(how, set, before);
}
extern "C" int sigprocmask(int how, const sigset_t* set, sigset_t* before) noexcept {
  const int code = set_mask(how, set, before);
  errno = code != 0 ? code : errno;
  return code == 0 ? 0 : -1;
}
