# The Rust library of the text layer (rust/), built with cargo as the imported target
# chorus_text_rust.
#
# Cargo's target folder is shared by all build folders of a source tree (and by several trees, if
# CHORUS_CARGO_TARGET_DIR says so), since the crates take minutes to build and do not depend on the
# flags of the C++ code. Each build folder takes a copy of the archive. With CHORUS_FUZZ the crates
# are built apart, as libFuzzer needs them: it is told which branches an input takes.

include_guard(GLOBAL)

set(CHORUS_CARGO_VERSION_MIN 1.87)
set(CHORUS_CARGO_TARGET_DIR ${PROJECT_SOURCE_DIR}/build/cargo CACHE PATH
  "Target folder of cargo, shared by all build folders")

# Accepts a cargo that runs and is new enough. (Debian's cargo-web installs /usr/bin/cargo, too.)
function(chorus_is_usable_cargo result candidate)
  execute_process(COMMAND ${candidate} --version
    OUTPUT_VARIABLE version ERROR_QUIET RESULT_VARIABLE status)
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${version}")
  if(NOT status EQUAL 0 OR version STREQUAL "" OR version VERSION_LESS CHORUS_CARGO_VERSION_MIN)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

find_program(CHORUS_CARGO NAMES cargo HINTS ENV PATH PATHS $ENV{CARGO_HOME}/bin $ENV{HOME}/.cargo/bin
  /usr/bin VALIDATOR chorus_is_usable_cargo
  DOC "cargo ${CHORUS_CARGO_VERSION_MIN} or newer")
if(NOT CHORUS_CARGO)
  message(FATAL_ERROR "The text layer needs cargo ${CHORUS_CARGO_VERSION_MIN} or newer, and none was "
    "found. Run `./dev setup`, or configure with -DCHORUS_TEXT=OFF for the core without text.")
endif()

set(rust_folder ${PROJECT_SOURCE_DIR}/rust)
set(rust_archive ${PROJECT_BINARY_DIR}/rust/libchorus_text.a)
if(CHORUS_FUZZ)
  execute_process(COMMAND ${CHORUS_CARGO} -vV OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "host: ([^\n]+)" version "${version}")
  # Naming the target keeps the flags away from build scripts, which do not link libFuzzer.
  set(rust_profile --profile fuzz --target ${CMAKE_MATCH_1})
  set(rust_output ${CMAKE_MATCH_1}/fuzz)
  string(CONCAT rust_flags "-Cpasses=sancov-module"
    " -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
    " -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares")
  set(rust_environment ${CMAKE_COMMAND} -E env "RUSTFLAGS=${rust_flags}")
else()
  set(rust_profile --release)
  set(rust_output release)
  set(rust_environment)
endif()
file(GLOB rust_sources CONFIGURE_DEPENDS ${rust_folder}/src/*.rs)
add_custom_command(OUTPUT ${rust_archive}
  COMMAND ${rust_environment} ${CHORUS_CARGO} build --quiet ${rust_profile} --locked
    --manifest-path ${rust_folder}/Cargo.toml --target-dir ${CHORUS_CARGO_TARGET_DIR}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/rust
  COMMAND ${CMAKE_COMMAND} -E copy ${CHORUS_CARGO_TARGET_DIR}/${rust_output}/libchorus_text.a ${rust_archive}
  # cargo leaves an archive alone that is up to date; the copy has to be newer than the sources.
  COMMAND ${CMAKE_COMMAND} -E touch ${rust_archive}
  DEPENDS ${rust_sources} ${rust_folder}/Cargo.toml ${rust_folder}/Cargo.lock
  COMMENT "Building the Rust library of the text layer (minutes the first time)"
  USES_TERMINAL VERBATIM)
add_custom_target(chorus_text_rust_build DEPENDS ${rust_archive})

add_library(chorus_text_rust STATIC IMPORTED GLOBAL)
add_dependencies(chorus_text_rust chorus_text_rust_build)
set_target_properties(chorus_text_rust PROPERTIES
  IMPORTED_LOCATION ${rust_archive}
  # What `cargo rustc -- --print native-static-libs` lists and the C++ compiler does not add itself.
  INTERFACE_LINK_LIBRARIES "Threads::Threads;rt;dl;m;gcc_s")
