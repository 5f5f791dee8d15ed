#pragma once

namespace terrace::kernels {

/// For its lifetime, OpenMP regions that the calling thread opens get a team of `threads`, and no
/// fewer. oneDNN divides a product by that number as it makes it; the part of a thread that then
/// does not come stays undone, and nobody says so.
///
/// What the calling thread's own settings decide (number of threads, dynamic teams, levels of
/// regions) is set, and put back at the end. What it cannot set is checked before.
/// Errors: usage, where a thread limit or a region that the thread is in already allows fewer.
class OpenMpTeam {
 public:
  explicit OpenMpTeam(int threads);
  ~OpenMpTeam();
  OpenMpTeam(const OpenMpTeam&) = delete;
  OpenMpTeam& operator=(const OpenMpTeam&) = delete;

 private:
  int threads_before_;
  int dynamic_before_;
  int levels_before_;
};

/// Opens a team of `threads` once, on a thread of its own as a stream has one, and counts it.
/// Errors: usage, where it is smaller; out_of_memory, where the system refuses so many threads.
void require_team(int threads);

/// Whether the calling thread is in an OpenMP region, where oneDNN takes itself to be alone.
[[nodiscard]] bool is_in_openmp_region();

}  // namespace terrace::kernels
