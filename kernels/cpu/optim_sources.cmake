# The optimizer's CPU kernels.
set(TERRACE_CPU_OPTIM_SOURCES
  cpu/cpu_target.cpp
  cpu/optim_job.cpp
  cpu/optim_step.cpp
  cpu/optim_streams.cpp
  cpu/optim_split_master.cpp
  cpu/optim_sum_squares.cpp)
