#include "cpu/openmp_team.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <future>

#include "terrace/core/error.h"
#include "terrace/core/workers.h"

namespace terrace::kernels {

OpenMpTeam::OpenMpTeam(int threads)
    : threads_before_(omp_get_max_threads()),
      dynamic_before_(omp_get_dynamic()),
      levels_before_(omp_get_max_active_levels()) {
  if (threads > 1) {
    require(!is_in_openmp_region(), ErrorKind::usage,
            "a matrix product of {} threads was begun inside an OpenMP parallel region, which "
            "leaves it one: begin it outside, or on a stream of a thread of its own",
            threads);
    require(omp_get_thread_limit() >= threads, ErrorKind::usage,
            "OMP_THREAD_LIMIT allows {} of the {} threads of a matrix product: unset it before "
            "the program starts, or ask for {} (--threads)",
            omp_get_thread_limit(), threads, omp_get_thread_limit());
  }
  omp_set_num_threads(threads);
  omp_set_dynamic(0);
  omp_set_max_active_levels(std::max(levels_before_, 1));
}

OpenMpTeam::~OpenMpTeam() {
  omp_set_max_active_levels(levels_before_);
  omp_set_dynamic(dynamic_before_);
  omp_set_num_threads(threads_before_);
}

void require_team(int threads) {
  if (threads <= 1) return;
  require_threads(threads);   // libgomp ends the process where the system refuses it one
  std::atomic<int> found{0};  // any of the team sets it
  std::async(std::launch::async, [&] {
    const OpenMpTeam team(threads);
#pragma omp parallel
    {
#pragma omp single
      found = omp_get_num_threads();
    }
  }).get();
  require(found == threads, ErrorKind::usage,
          "OpenMP gives a team of {} where {} threads were asked for: unset its variables in the "
          "environment (OMP_*, GOMP_*, KMP_*), or ask for {} (--threads)",
          found.load(), threads, found.load());
}

bool is_in_openmp_region() { return omp_in_parallel() != 0; }

}  // namespace terrace::kernels
