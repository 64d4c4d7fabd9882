# One CMake target per layer, and the table from which tools/check_layers.py checks the includes.

include_guard(GLOBAL)

set(CHORUS_WARNINGS -Wall -Wextra -Wshadow -Wconversion
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
# g++ 12 reports these two falsely inside its own std::string and std::vector at -O2 and above
# (GCC bugs 105329 and 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND CHORUS_WARNINGS -Wno-restrict -Wno-stringop-overflow)
endif()
if(CHORUS_WERROR)
  list(APPEND CHORUS_WARNINGS -Werror)
endif()

# Options that every target of the project is built with.
#   -ffp-contract=off: the arithmetic order of each result is part of the contract; g++ would otherwise
#   fuse a * b + c in one tile shape and not in another.
add_library(chorus_options INTERFACE)
target_compile_options(chorus_options INTERFACE ${CHORUS_WARNINGS} -ffp-contract=off)
if(CHORUS_SANITIZE)
  target_compile_options(chorus_options INTERFACE
    -fsanitize=${CHORUS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(chorus_options INTERFACE -fsanitize=${CHORUS_SANITIZE})
endif()

# chorus_layer(NAME kv DEPS base SOURCES a.cpp HEADERS a.h [PUBLIC b.h] [LINK lib...] [NOT_IN_LIBRARY])
#
# Makes the static library chorus_NAME (alias chorus::NAME) from the folder of the calling list file.
# DEPS are layers declared before this one, so that a cycle cannot be written. Every header of the
# folder is named in HEADERS, and is compiled alone by the target all_verify_interface_header_sets.
# PUBLIC headers lie below include/chorus/ in place of src/ and are installed. Sources include both
# kinds as "kv/a.h"; public headers include each other as they are installed, "chorus/kv/b.h".
# NOT_IN_LIBRARY: used by apps alone, and left out of the installed library.
function(chorus_layer)
  cmake_parse_arguments(ARG "NOT_IN_LIBRARY" "NAME" "DEPS;SOURCES;HEADERS;PUBLIC;LINK" ${ARGN})
  foreach(dep IN LISTS ARG_DEPS)
    if(NOT TARGET chorus::${dep})
      message(FATAL_ERROR "layer ${ARG_NAME}: its dependency ${dep} is not declared before it")
    endif()
  endforeach()
  set(target chorus_${ARG_NAME})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(chorus::${ARG_NAME} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${ARG_NAME} VERIFY_INTERFACE_HEADER_SETS ON)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/src FILES ${ARG_HEADERS})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR})
  set(public ${ARG_PUBLIC})
  if(NOT folder STREQUAL "chorus")  # the facade's own are not in a folder
    list(TRANSFORM public PREPEND ${folder}/)
  endif()
  list(TRANSFORM public PREPEND ${PROJECT_SOURCE_DIR}/include/chorus/)
  target_sources(${target} PUBLIC FILE_SET public_headers TYPE HEADERS
    BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${public})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include/chorus)
  set_property(GLOBAL APPEND PROPERTY CHORUS_PUBLIC_HEADERS ${public})
  if(NOT ARG_NOT_IN_LIBRARY)
    set_property(GLOBAL APPEND PROPERTY CHORUS_LAYERS ${ARG_NAME})
  endif()
  target_link_libraries(${target} PUBLIC chorus_options Threads::Threads)
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(${target} PUBLIC chorus::${dep})
  endforeach()
  if(ARG_LINK)
    target_link_libraries(${target} PRIVATE ${ARG_LINK})
  endif()
  list(JOIN ARG_DEPS " " deps)
  list(JOIN ARG_HEADERS " " headers)
  list(JOIN ARG_PUBLIC " " public)
  set_property(GLOBAL APPEND PROPERTY CHORUS_LAYER_LINES "${ARG_NAME}|${folder}|${deps}|${headers}|${public}")
endfunction()

# chorus_test(NAME kv_books SOURCES books_test.cpp LAYERS kv [LINK lib...] [LABELS l...] [TIMEOUT s]
#             [RELEASE])
#
# Built and run in the sanitized builds; in the optimised one only with RELEASE, for tests whose outcome
# depends on how the code was compiled. Built for another machine, it runs once on each processor of
# CHORUS_EMULATED_CPUS, as NAME_PROCESSOR.
function(chorus_test)
  if(NOT CHORUS_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "RELEASE" "NAME;TIMEOUT" "SOURCES;LAYERS;LINK;LABELS" ${ARGN})
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT ARG_RELEASE)
    return()
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  foreach(layer IN LISTS ARG_LAYERS)
    target_link_libraries(${ARG_NAME} PRIVATE chorus::${layer})
  endforeach()
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LINK} chorus_options GTest::gtest_main)
  target_compile_definitions(${ARG_NAME} PRIVATE CHORUS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set(tests ${ARG_NAME})
  if(CHORUS_EMULATED_CPUS)
    list(TRANSFORM CHORUS_EMULATED_CPUS PREPEND ${ARG_NAME}_ OUTPUT_VARIABLE tests)
  endif()
  foreach(test IN LISTS tests)
    add_test(NAME ${test} COMMAND ${ARG_NAME} --gtest_brief=1)
    if(ARG_LABELS)
      set_tests_properties(${test} PROPERTIES LABELS "${ARG_LABELS}")
    endif()
    if(ARG_TIMEOUT)
      set_tests_properties(${test} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
    endif()
  endforeach()
  foreach(cpu IN LISTS CHORUS_EMULATED_CPUS)  # one after the other: they write the same files
    set_tests_properties(${ARG_NAME}_${cpu} PROPERTIES
      ENVIRONMENT QEMU_CPU=${cpu} RESOURCE_LOCK ${ARG_NAME})
  endforeach()
endfunction()

# Writes build/layers.txt and adds the test that reads it. Called once, after all layers.
function(chorus_write_layer_table)
  get_property(lines GLOBAL PROPERTY CHORUS_LAYER_LINES)
  list(JOIN lines "\n" text)
  file(WRITE ${PROJECT_BINARY_DIR}/layers.txt "${text}\n")
  if(CHORUS_TESTS)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    add_test(NAME layers COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/check_layers.py
      --table ${PROJECT_BINARY_DIR}/layers.txt --source ${PROJECT_SOURCE_DIR}/src
      --public ${PROJECT_SOURCE_DIR}/include/chorus)
  endif()
endfunction()
