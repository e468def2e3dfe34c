# SPDX-License-Identifier: Apache-2.0
# The install tree: headers and CMake files, which are the same on every machine, whatever was found here.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(stagger_config_dir lib/cmake/stagger)  # not LIBDIR: nothing here depends on the architecture
foreach(name IN LISTS stagger_present)
  if(stagger_${name}_files)
    install(TARGETS stagger_${name} EXPORT stagger-${name}-targets FILE_SET HEADERS)
  else()
    install(TARGETS stagger_${name} EXPORT stagger-${name}-targets)
  endif()
  install(EXPORT stagger-${name}-targets NAMESPACE stagger:: DESTINATION ${stagger_config_dir})
endforeach()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/stagger-config-version.cmake
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
file(GLOB stagger_modules ${stagger_glob_depends} ${CMAKE_CURRENT_LIST_DIR}/Find*.cmake)
install(FILES ${CMAKE_CURRENT_LIST_DIR}/stagger-config.cmake
              ${CMAKE_CURRENT_LIST_DIR}/stagger-components.cmake
              ${CMAKE_CURRENT_LIST_DIR}/stagger-separate.cmake
              ${PROJECT_BINARY_DIR}/stagger-config-version.cmake ${stagger_modules}
        DESTINATION ${stagger_config_dir})
foreach(file IN ITEMS README.md CHANGELOG.md LICENSE)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${file})
    install(FILES ${PROJECT_SOURCE_DIR}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/stagger)
  endif()
endforeach()
