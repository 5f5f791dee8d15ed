#include "terrace/core/error.h"
#include "terrace/io/engine.h"

namespace terrace::io {

std::optional<DriverKind> driver_kind_named(std::string_view name) {
  if (name == "uring" || name == "io_uring") return DriverKind::uring;
  if (name == "thread" || name == "threads") return DriverKind::threads;
  return std::nullopt;
}

std::unique_ptr<Engine> make_engine(const EngineOptions& options, Log& log) {
  const DriverOptions wanted{.depth = Engine::driver_depth(options), .sqpoll = options.sqpoll};
  std::unique_ptr<Driver> driver;
  if (options.driver == DriverKind::uring) {
    int refusal = 0;
    driver = make_uring_driver(wanted, refusal);
    if (driver == nullptr) {
      log.fallback(
          "io.uring",
          fmt::format("io_uring is refused with {}, so threads with pread and pwrite do the "
                      "I/O, at more CPU time; allow it with 'sysctl "
                      "kernel.io_uring_disabled=0', in a container with 'docker run "
                      "--security-opt seccomp=unconfined'",
                      errno_name(refusal)));
    }
  }
  if (driver == nullptr) driver = make_thread_driver(wanted);
  return std::make_unique<Engine>(std::move(driver), options, log);
}

void transfer(Engine& engine, const Request& request) {
  require(engine.in_flight() == 0 && engine.submit({&request, 1}) == 1, ErrorKind::internal,
          "a transfer by itself was asked of an engine that is at work");
  Completion completion;
  (void)engine.wait({&completion, 1}, 1);
  require(completion.error == 0, ErrorKind::io, "{}", completion.message);
}

}  // namespace terrace::io
