#pragma once

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace terrace::testing {

/// From now on every call that takes or looks at a lock fails as on a file system that has none, or
/// flock alone does. For a child; where no filter can be installed it ends with 98.
inline void forbid_locks(bool flock_alone) {
  const auto code = SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(ENOSYS);
  const std::array<sock_filter, 9> program = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_flock, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, code),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, flock_alone ? ~0U : SYS_fcntl, 0, 4),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_OFD_SETLK, 1, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_OFD_GETLK, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, code),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog filter = {program.size(), const_cast<sock_filter*>(program.data())};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    ::_exit(98);
  }
}

}  // namespace terrace::testing
