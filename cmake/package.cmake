# What is installed besides the command line tool: the library with its headers, as the CMake package
# chorus (targets chorus::chorus and chorus::static) and as the pkg-config module chorus.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(objects)
get_property(layers GLOBAL PROPERTY CHORUS_LAYERS)
foreach(layer IN LISTS layers)
  list(APPEND objects $<TARGET_OBJECTS:chorus_${layer}>)
endforeach()
get_property(public_headers GLOBAL PROPERTY CHORUS_PUBLIC_HEADERS)

# All layers and the Rust library in one shared object, which a C program can link as well. It
# exports what the public headers declare.
add_library(chorus_shared SHARED ${objects})
target_link_libraries(chorus_shared PRIVATE chorus_text_rust)
target_link_options(chorus_shared PRIVATE -Wl,--no-undefined
  -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/exports.map)
set_target_properties(chorus_shared PROPERTIES OUTPUT_NAME chorus EXPORT_NAME chorus
  LINKER_LANGUAGE CXX LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/exports.map
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# The same as an archive, beside that of the Rust library.
add_library(chorus_static STATIC ${objects})
target_link_libraries(chorus_static INTERFACE
  $<INSTALL_INTERFACE:$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}/libchorus_text.a>
  Threads::Threads rt dl m gcc_s)
set_target_properties(chorus_static PROPERTIES OUTPUT_NAME chorus EXPORT_NAME static
  LINKER_LANGUAGE CXX)
get_target_property(rust_archive chorus_text_rust IMPORTED_LOCATION)
install(FILES ${rust_archive} DESTINATION ${CMAKE_INSTALL_LIBDIR})

foreach(library chorus_shared chorus_static)
  target_sources(${library} PUBLIC FILE_SET public_headers TYPE HEADERS
    BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${public_headers})
endforeach()
install(TARGETS chorus_shared chorus_static EXPORT chorusTargets FILE_SET public_headers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/chorus)
install(EXPORT chorusTargets NAMESPACE chorus:: DESTINATION ${package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/chorusConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/chorusConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/chorusConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/chorusConfig.cmake
  ${PROJECT_BINARY_DIR}/package/chorusConfigVersion.cmake DESTINATION ${package_folder})
file(RELATIVE_PATH CHORUS_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/chorus.pc.in ${PROJECT_BINARY_DIR}/package/chorus.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/chorus.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
