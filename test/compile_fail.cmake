# SPDX-License-Identifier: Apache-2.0
# cmake -DCOMPILERS=... -DSOURCE=... -DINCLUDE=... [-DSYSTEM=...] -DPRECOMPILED=... -DROW=... -P compile_fail.cmake
#
# Passes when SOURCE compiles with none of COMPILERS and each prints what each of its lines
# `// expect-error: <regular expression>` asks for, the first of them in its first error. Failing alone is not
# enough: a typo fails as well. Each line `// flags: <flags>` makes a case of its own,
# compiled with these flags too; a line `// accepted: <flags>` names flags with which it does compile. A line
# `// expect-error -DNAME=value: <regular expression>` makes a case of its own with this macro and this first error.
# With a line `// errors: <number>` no compiler prints more errors than that; with `// only: <name>`, only compilers
# whose name begins so are asked. For a source with a line
# `// component: <name>`, SYSTEM has the folders of the headers that this component needs.
#
# Of a source with several cases, compilers after the first are asked about one, by its name; by `./run test --full`
# about all.
#
# PRECOMPILED/<compiler> holds <stagger/stagger.hpp> precompiled, for sources that include it first. Where a source
# has a line `// mistake: <group>: <what>`, each compiler says it in at most 20 lines, and the sentence of the first,
# in its first error or in a line of stagger's that it quotes, is left in ROW for docs/errors.md. For a mistake that
# compilers report in words of their own, a line `// remedy: <what to do>` takes its place.

cmake_minimum_required(VERSION 3.25)
set(most_lines 20)
list(TRANSFORM SYSTEM PREPEND "-isystem" OUTPUT_VARIABLE system)

file(STRINGS ${SOURCE} wanted REGEX "^// expect-error: ")
list(TRANSFORM wanted REPLACE "^// expect-error: " "")
file(STRINGS ${SOURCE} mistakes REGEX "^// expect-error -D")
if(NOT wanted AND NOT mistakes)
  message(FATAL_ERROR "${SOURCE} has no line '// expect-error: <regular expression>'")
endif()
file(STRINGS ${SOURCE} most_errors REGEX "^// errors: ")
string(REPLACE "// errors: " "" most_errors "${most_errors}")
file(STRINGS ${SOURCE} mistake REGEX "^// mistake: ")
file(STRINGS ${SOURCE} includes REGEX "^#include")
set(ENV{LC_ALL} C)

function(compile compiler flags)
  separate_arguments(list UNIX_COMMAND "${flags}")
  if(flags MATCHES "^(-D[A-Z][A-Z_]*(=[A-Za-z_]+)?)?$" AND includes MATCHES "^#include <stagger/stagger\\.hpp>")
    cmake_path(GET compiler FILENAME name)
    if(EXISTS ${PRECOMPILED}/${name}/stagger.pch)
      list(APPEND list -include-pch ${PRECOMPILED}/${name}/stagger.pch)
    else()
      list(APPEND list -I${PRECOMPILED}/${name})  # where g++ finds stagger/stagger.hpp.gch
    endif()
  endif()
  execute_process(COMMAND ${compiler} -std=c++20 -fsyntax-only -fdiagnostics-color=never ${list} -I${INCLUDE} ${system} ${SOURCE}
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(result "${result}" PARENT_SCOPE)
  # The compiler quotes source lines; what the test itself says must not count as the compiler's words.
  string(REGEX REPLACE "// (expect-error|errors|flags|accepted|mistake|remedy|only)[^\n]*" "" output "${output}")
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Passes when <compiler> refuses SOURCE with these flags, says all of <patterns> and the first in its first error.
function(check compiler flags patterns)
  compile(${compiler} "${flags}")
  if(result EQUAL 0)
    message(FATAL_ERROR "${SOURCE} compiles with ${compiler} and the flags '${flags}', but must not")
  endif()
  string(REGEX MATCH "[^\n]*error: [^\n]*" first "${output}")
  list(GET patterns 0 pattern)
  if(NOT first MATCHES "${pattern}")
    message(FATAL_ERROR "${SOURCE}: with '${flags}' the first error of ${compiler} is not '${pattern}' but\n${first}")
  endif()
  foreach(pattern IN LISTS patterns)
    if(NOT output MATCHES "${pattern}")
      message(FATAL_ERROR "${SOURCE}: ${compiler} does not say '${pattern}'. It says:\n${output}")
    endif()
  endforeach()
  string(REGEX MATCHALL "error: " errors "${output}")
  list(LENGTH errors errors)
  if(most_errors AND errors GREATER most_errors)
    message(FATAL_ERROR "${SOURCE}: ${compiler} prints ${errors} errors instead of ${most_errors}:\n${output}")
  endif()
  string(REGEX MATCHALL "\n" lines "${output}")
  list(LENGTH lines lines)
  if(mistake AND lines GREATER most_lines)
    message(FATAL_ERROR "${SOURCE}: ${compiler} needs ${lines} lines, more than ${most_lines}:\n${output}")
  endif()
  if(NOT said STREQUAL "")
    return()
  elseif(first MATCHES "stagger: (.*)$")
    set(said "${CMAKE_MATCH_1}" PARENT_SCOPE)
  elseif(output MATCHES "// stagger: ([^\n]*)")
    set(said "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

file(STRINGS ${SOURCE} refused REGEX "^// flags: ")
list(TRANSFORM refused REPLACE "^// flags: " "")
if(wanted AND NOT refused)
  set(refused "-std=c++20")  # a list of one empty element is none
endif()
file(STRINGS ${SOURCE} accepted REGEX "^// accepted: ")
list(TRANSFORM accepted REPLACE "^// accepted: " "")

# Leaves one of the cases that must not compile, the one of this source.
function(take_one)
  list(LENGTH refused r)
  list(LENGTH mistakes m)
  string(SHA1 number ${SOURCE_NAME})
  string(SUBSTRING ${number} 0 6 number)
  math(EXPR k "0x${number} % (${r} + ${m})")
  foreach(cases IN ITEMS refused mistakes)
    list(LENGTH ${cases} n)
    set(one "")
    if(k GREATER_EQUAL 0 AND k LESS n)
      list(GET ${cases} ${k} one)
      string(REPLACE ";" "\\;" one "${one}")
    endif()
    math(EXPR k "${k} - ${n}")
    set(${cases} "${one}" PARENT_SCOPE)
  endforeach()
  set(accepted "" PARENT_SCOPE)
endfunction()

set(said "")
cmake_path(GET SOURCE STEM SOURCE_NAME)
set(asked FALSE)
file(STRINGS ${SOURCE} only REGEX "^// only: ")
string(REPLACE "// only: " "" only "${only}")
foreach(compiler IN LISTS COMPILERS)
  cmake_path(GET compiler FILENAME name)
  if(only AND NOT name MATCHES "^${only}")
    continue()
  endif()
  if(asked AND NOT "$ENV{STAGGER_FULL}" STREQUAL "1")
    take_one()
  endif()
  set(asked TRUE)
  foreach(flags IN LISTS refused)
    string(REPLACE "-std=c++20" "" flags "${flags}")
    check(${compiler} "${flags}" "${wanted}")
  endforeach()
  foreach(case IN LISTS mistakes)
    string(REGEX MATCH "^// expect-error (-D[^ ]+): (.*)$" case "${case}")
    check(${compiler} ${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
  endforeach()
  foreach(flags IN LISTS accepted)
    compile(${compiler} "${flags}")
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "${SOURCE} must compile with ${compiler} and the flags '${flags}', but does not:\n${output}")
    endif()
  endforeach()
endforeach()

if(mistake)
  file(STRINGS ${SOURCE} see REGEX "^// see: ")
  file(STRINGS ${SOURCE} remedy REGEX "^// remedy: ")
  if(remedy)
    string(REPLACE "// remedy: " "" said "${remedy}")
    string(REPLACE "\\;" ";" said "${said}")
  endif()
  if(NOT see OR said STREQUAL "")
    message(FATAL_ERROR "${SOURCE} has a line '// mistake:', so it must have a line '// see: <document>' and be "
                        "refused with a sentence of stagger's")
  endif()
  string(REGEX REPLACE "\"$" "" said "${said}")  # of an #error
  string(REGEX REPLACE "'? \\[-W[^]]*\\]$" "" said "${said}")  # of a warning
  file(WRITE ${ROW} "${said}")
endif()
