# SPDX-License-Identifier: Apache-2.0
# cmake -DCOMPILER=... -DSOURCE=... -DINCLUDE=... -P compile_fail.cmake
#
# Passes when SOURCE does not compile and the compiler prints what each of its lines
# `// expect-error: <regular expression>` asks for, the first of them in its first error. Failing alone
# is not enough: a typo fails as well.

cmake_minimum_required(VERSION 3.25)

file(STRINGS ${SOURCE} wanted REGEX "^// expect-error: ")
if(NOT wanted)
  message(FATAL_ERROR "${SOURCE} has no line '// expect-error: <regular expression>'")
endif()
set(ENV{LC_ALL} C)
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only -fdiagnostics-color=never -I${INCLUDE} ${SOURCE}
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles, but must not")
endif()
# The compiler quotes source lines; what the test itself says must not count as the compiler's words.
string(REGEX REPLACE "// expect-error: [^\n]*" "" output "${output}")
string(REGEX MATCH "[^\n]*error: [^\n]*" first "${output}")
list(GET wanted 0 pattern)
string(REPLACE "// expect-error: " "" pattern "${pattern}")
if(NOT first MATCHES "${pattern}")
  message(FATAL_ERROR "${SOURCE}: the first error is not '${pattern}' but\n${first}")
endif()
foreach(line IN LISTS wanted)
  string(REPLACE "// expect-error: " "" pattern "${line}")
  if(NOT output MATCHES "${pattern}")
    message(FATAL_ERROR "${SOURCE} does not compile, but the compiler does not say '${pattern}'. It says:\n${output}")
  endif()
endforeach()
