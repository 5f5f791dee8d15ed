# What every part of Terrace is compiled with, and the function that declares a layer.

add_library(terrace_options INTERFACE)
set_target_properties(terrace_options PROPERTIES EXPORT_NAME options)
target_compile_features(terrace_options INTERFACE cxx_std_20)
# Bits must agree between devices and instruction sets: multiply and add stay apart.
target_compile_options(terrace_options INTERFACE
  $<BUILD_INTERFACE:-ffp-contract=off;-Wall;-Wextra;-Wconversion;-Wshadow>
  $<BUILD_INTERFACE:$<$<BOOL:${TERRACE_WARNINGS_AS_ERRORS}>:-Werror>>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees overlapping copies in std::string's operator+ that are none (GCC bug 105651).
  target_compile_options(terrace_options INTERFACE $<BUILD_INTERFACE:-Wno-restrict>)
endif()

if(TERRACE_SANITIZE)
  target_compile_options(terrace_options INTERFACE $<BUILD_INTERFACE:
    -fsanitize=${TERRACE_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  target_link_options(terrace_options INTERFACE $<BUILD_INTERFACE:-fsanitize=${TERRACE_SANITIZE}>)
endif()
if(TERRACE_SANITIZE MATCHES "thread")
  # The packaged TBB is not instrumented and would report races that are none.
  target_compile_definitions(terrace_options INTERFACE $<BUILD_INTERFACE:TERRACE_STD_WORKERS>)
endif()

# Messages of internal faults name a source as it lies in the tree, not where that was built. A cache
# of compilations may have made the path relative to the build folder.
file(RELATIVE_PATH terrace_tree ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
set(TERRACE_RELATIVE_PATHS
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/= -fmacro-prefix-map=${terrace_tree}=)

# terrace_layer(NAME SOURCES ... [ALONE ...] [LAYERS ...] [PUBLIC ...] [PRIVATE ...]): one layer's
# library, `terrace::NAME`. LAYERS are the layers that it may include (tools/check holds it to them); PUBLIC
# and PRIVATE are libraries of others that its headers or its bodies need. With TERRACE_PARSE_ONCE
# eight sources at a time are one translation unit, which takes half of the time; ALONE are sources
# that name something of their own as another does. The presets `test` and `ci` compile each source
# by itself, which is what finds a missing #include.
function(terrace_layer name)
  cmake_parse_arguments(arg "" "" "SOURCES;ALONE;LAYERS;PUBLIC;PRIVATE" ${ARGN})
  add_library(terrace_${name} STATIC ${arg_SOURCES})
  add_library(terrace::${name} ALIAS terrace_${name})
  set_target_properties(terrace_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name}
    UNITY_BUILD ${TERRACE_PARSE_ONCE} UNITY_BUILD_BATCH_SIZE 8)
  set_source_files_properties(${arg_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(terrace_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_options(terrace_${name} PRIVATE ${TERRACE_RELATIVE_PATHS})
  list(TRANSFORM arg_LAYERS PREPEND terrace_)
  target_link_libraries(terrace_${name}
    PUBLIC terrace_options ${arg_LAYERS} ${arg_PUBLIC} PRIVATE Threads::Threads ${arg_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY TERRACE_LAYERS terrace_${name})
endfunction()
