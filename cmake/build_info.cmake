# Writes OUTPUT with the project's VERSION and the commit of SOURCE ("+" marks uncommitted changes).
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty=+ --abbrev=12
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
endif()
set(text "#pragma once\n#define CHORUS_VERSION \"${VERSION}\"\n#define CHORUS_COMMIT \"${commit}\"\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT "${old}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
