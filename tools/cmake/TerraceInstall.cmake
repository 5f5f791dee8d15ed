# terrace::terrace, all layers as one library, and its installation with a CMake package file.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(terrace_layers GLOBAL PROPERTY TERRACE_LAYERS)
add_library(terrace_library INTERFACE)
add_library(terrace::terrace ALIAS terrace_library)
set_target_properties(terrace_library PROPERTIES EXPORT_NAME terrace)
target_link_libraries(terrace_library INTERFACE ${terrace_layers})

set(terrace_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Terrace)
install(TARGETS terrace_library terrace_options ${terrace_layers} EXPORT TerraceTargets)
install(EXPORT TerraceTargets NAMESPACE terrace:: DESTINATION ${terrace_package_folder})
install(DIRECTORY include/terrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
configure_package_config_file(tools/cmake/TerraceConfig.cmake.in
  ${PROJECT_BINARY_DIR}/TerraceConfig.cmake INSTALL_DESTINATION ${terrace_package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TerraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TerraceConfig.cmake
  ${PROJECT_BINARY_DIR}/TerraceConfigVersion.cmake tools/cmake/TerraceDependencies.cmake
  DESTINATION ${terrace_package_folder})
