# The libraries that Terrace is built from, all of them packages of the distribution: used by the
# build, and installed, so that a program that links terrace::terrace finds the same ones.

include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(fmt)
find_dependency(TBB)
find_dependency(nlohmann_json 3.9)
find_dependency(dnnl)
find_dependency(OpenMP COMPONENTS CXX)  # oneDNN's threads, whose number is set
find_dependency(PkgConfig)
foreach(terrace_module hwloc=hwloc uring=liburing isal=libisal hwy=libhwy)
  string(REGEX MATCH "^(.*)=(.*)$" terrace_ignored ${terrace_module})
  if(NOT TARGET PkgConfig::${CMAKE_MATCH_1})
    pkg_check_modules(${CMAKE_MATCH_1} REQUIRED QUIET IMPORTED_TARGET ${CMAKE_MATCH_2})
  endif()
endforeach()
