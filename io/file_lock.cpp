#include "file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace terrace::io {
namespace {

/// fcntl on the whole file; 0 or the error.
int call_fcntl(int descriptor, int command, struct flock& lock) {
  int code = 0;
  do {
    code = ::fcntl(descriptor, command, &lock) == 0 ? 0 : errno;
  } while (code == EINTR);
  return code;
}

LockAnswer call_flock(int descriptor, int operation) {
  int code = 0;
  do {
    code = ::flock(descriptor, operation | LOCK_NB) == 0 ? 0 : errno;
  } while (code == EINTR);
  if (code == 0) return LockAnswer::free;
  return code == EWOULDBLOCK ? LockAnswer::held : LockAnswer::unknown;
}

struct flock whole_file(int type) {
  struct flock lock {};
  lock.l_type = static_cast<short>(type);
  lock.l_whence = SEEK_SET;
  return lock;
}

LockAnswer take(int descriptor, int type, int operation) {
  struct flock lock = whole_file(type);
  const int code = call_fcntl(descriptor, F_OFD_SETLK, lock);
  if (code == 0) return LockAnswer::free;
  if (code == EAGAIN || code == EACCES) return LockAnswer::held;
  return call_flock(descriptor, operation);
}

}  // namespace

LockAnswer take_lock(int descriptor) { return take(descriptor, F_WRLCK, LOCK_EX); }

LockAnswer share_lock(int descriptor) { return take(descriptor, F_RDLCK, LOCK_SH); }

LockAnswer look_at_lock(int descriptor) {
  struct flock lock = whole_file(F_WRLCK);
  if (call_fcntl(descriptor, F_OFD_GETLK, lock) == 0) {
    return lock.l_type == F_UNLCK ? LockAnswer::free : LockAnswer::held;
  }
  const LockAnswer answer = call_flock(descriptor, LOCK_EX);
  if (answer == LockAnswer::free) (void)call_flock(descriptor, LOCK_UN);
  return answer;
}

}  // namespace terrace::io
