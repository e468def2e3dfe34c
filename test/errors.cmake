# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=<checkout> -DROWS=<what compile_fail.cmake left> [-DWRITE=ON] -P errors.cmake
#
# Passes when the tables of docs/errors.md are what test/compile_fail/*.cpp and the compiler say: the lines
# `// mistake: <group>: <what>` and `// see: <document>` of each source, and the sentence that the compiler printed, or
# its line `// remedy: <what to do>`.
# With WRITE, makes them so.

cmake_minimum_required(VERSION 3.25)

set(groups build stage loss policy device step table words)
set(heading_build "The compiler")
set(heading_stage "Stages and how they are put together")
set(heading_loss "Losses")
set(heading_policy "Policies")
set(heading_device "Values between processes")
set(heading_step "Trainers and steps")
set(heading_table "Schedules in a `static_assert`")
set(heading_words "In the compiler's own words")

file(GLOB sources ${ROOT}/test/compile_fail/*.cpp)
foreach(source IN LISTS sources)
  file(STRINGS ${source} mistake REGEX "^// mistake: ")
  if(NOT mistake)
    continue()
  endif()
  cmake_path(GET source STEM name)
  if(NOT mistake MATCHES "^// mistake: ([a-z]+): (.*)$" OR NOT CMAKE_MATCH_1 IN_LIST groups)
    message(FATAL_ERROR "${source}: '${mistake}' does not begin with one of the groups ${groups}")
  endif()
  set(group ${CMAKE_MATCH_1})
  string(REPLACE "\\;" ";" what "${CMAKE_MATCH_2}")
  file(STRINGS ${source} see REGEX "^// see: ")
  string(REPLACE "// see: " "" see "${see}")
  string(REGEX REPLACE "#.*" "" file "${see}")
  file(STRINGS ${ROOT}/docs/${file} title LIMIT_COUNT 1 REGEX "^# ")
  string(REPLACE "# " "" title "${title}")
  file(READ ${ROWS}/${name} said)
  file(STRINGS ${source} remedy REGEX "^// remedy: ")
  foreach(pair IN ITEMS "&=&amp;" "<=&lt;" ">=&gt;" "|=&#124;" "*=&#42;")
    if(remedy)  # is Markdown
      break()
    endif()
    string(SUBSTRING "${pair}" 0 1 from)
    string(SUBSTRING "${pair}" 2 -1 to)
    string(REPLACE "${from}" "${to}" said "${said}")
  endforeach()
  string(APPEND rows_${group} "| ${what} | ${said} | [${title}](${see}) |\n")
endforeach()

set(tables "")
foreach(group IN LISTS groups)
  set(says "the compiler says")
  if(group STREQUAL "words")
    set(says "what to do")
  endif()
  string(APPEND tables "\n## ${heading_${group}}\n\n| mistake | ${says} | more |\n|---|---|---|\n${rows_${group}}")
endforeach()

include(${CMAKE_CURRENT_LIST_DIR}/made_part.cmake)
made_part(${ROOT}/docs/errors.md errors "${WRITE}" "${tables}"
          "cmake -DROOT=${ROOT} -DROWS=${ROWS} -DWRITE=ON -P ${ROOT}/test/errors.cmake")
