#pragma once

#include <cstdint>

namespace terrace::io {

/// Note "Locks". They are fcntl's, of the open file (F_OFD_SETLK): one ends when the last
/// descriptor of that open file does, however its process ends. Network file systems carry them
/// from host to host, and they can be looked at without being taken, so that looking stands in
/// nobody's way. Where fcntl has none, flock may. Where neither has, nothing is known, and unknown
/// is never free. What a mount keeps to its host (NFS with local_lock, Lustre with localflock) is
/// known there alone, and no program can tell.
enum class LockAnswer : std::uint8_t {
  free,     ///< and the caller's now, where it was asked for
  held,     ///< by another open file
  unknown,  ///< the file system, or the system, has no locks
};

/// Take the lock of an open file, which is open for reading and writing. They never wait.
[[nodiscard]] LockAnswer take_lock(int descriptor);
[[nodiscard]] LockAnswer share_lock(int descriptor);

/// Whether `take_lock` would have it now.
[[nodiscard]] LockAnswer look_at_lock(int descriptor);

}  // namespace terrace::io
