# SPDX-License-Identifier: Apache-2.0
# targets_of.sh names the target of every test that ctest would run for a pattern, and no more than it must.
# Called with -DROOT=<checkout> -DBUILD=<build folder> -DCTEST=<program>.
cmake_minimum_required(VERSION 3.25)

# The folder is relative, as ./run passes it.
cmake_path(RELATIVE_PATH BUILD BASE_DIRECTORY ${ROOT} OUTPUT_VARIABLE folder)
function(targets_of pattern)
  execute_process(COMMAND bash test/targets_of.sh ${folder} "${pattern}" WORKING_DIRECTORY ${ROOT}
                  OUTPUT_VARIABLE output RESULT_VARIABLE result)
  if(result)
    message(FATAL_ERROR "targets_of.sh '${pattern}' ended with ${result}")
  endif()
  string(REGEX REPLACE "\n" ";" output "${output}")
  list(REMOVE_ITEM output "")
  set(targets "${output}" PARENT_SCOPE)
endfunction()

function(expect wanted pattern)
  targets_of("${pattern}")
  if(NOT targets STREQUAL wanted)
    message(FATAL_ERROR "'${pattern}' needs '${wanted}', not '${targets}'")
  endif()
endfunction()
expect("unit_report" "unit.report/svg: every action")
expect("unit_report" "^unit.report/")
expect("" "^floors$")
expect("stagger_tool" "^example.stagger")
expect("all" "no test has this name")

# Whatever ctest knows by now.
foreach(pattern schedule "plan" "unit.core/.*[a-z]$" "example.gpt.plan|one_thread.core")
  targets_of("${pattern}")
  if(targets STREQUAL "all")
    continue()
  endif()
  execute_process(COMMAND ${CTEST} --test-dir ${BUILD} -N -R "${pattern}" OUTPUT_VARIABLE listed)
  string(REGEX MATCHALL "unit\\.[a-z_]+/" names "${listed}")
  list(REMOVE_DUPLICATES names)
  foreach(name IN LISTS names)
    string(REGEX REPLACE "unit\\.(.*)/" "unit_\\1" target "${name}")
    if(NOT target IN_LIST targets)
      message(FATAL_ERROR "'${pattern}' needs ${target}, which is not among '${targets}'")
    endif()
  endforeach()
endforeach()
