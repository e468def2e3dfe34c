# SPDX-License-Identifier: Apache-2.0
# A run that was stopped and resumed, even with other stages, threads or schedule, or that was killed at any moment, ends
# with the same bits as one that was never stopped.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

run(${tiny} --steps 8 --every 3 --checkpoint ${FOLDER}/whole)
expect_result(0)
file(GLOB names RELATIVE ${FOLDER}/whole ${FOLDER}/whole/*)
if(NOT "${names}" STREQUAL "step-000000006.stagger;step-000000008.stagger")
  fail("should keep the last two checkpoints, not '${names}'")
endif()

run(${tiny} --steps 8 --every 3 --checkpoint ${FOLDER}/parts --stop-at 4)
expect_result(0)
expect(output "stopped after step 4 of 8; --resume goes on")
run(${tiny} --steps 8 --every 3 --checkpoint ${FOLDER}/parts --resume --stop-at 7 --stages 3 --threads 2)
expect_result(0)
run(${tiny} --steps 8 --every 3 --checkpoint ${FOLDER}/parts --resume --stages 1 --schedule gpipe --recompute)
expect_result(0)
expect_same(${FOLDER}/whole/step-000000008.stagger ${FOLDER}/parts/step-000000008.stagger)
run(${tiny} --steps 8 --checkpoint ${FOLDER}/parts --resume)
expect_result(0)

# Other settings are allowed, with a warning that the bits will differ.
run(${tiny} --steps 9 --checkpoint ${FOLDER}/parts --resume)
expect_result(0)
expect(errors "warning: [^\n]*was written with other settings \\(steps 8, now 9\\): ")
run(${tiny} --steps 10 --checkpoint ${FOLDER}/parts --resume --rate 0.004 --text ${CMAKE_CURRENT_LIST_FILE})
expect_result(0)
expect(errors "other settings \\(steps 9, now 10; rate 0.005, now 0.004; another text\\): ")

# Two runs cannot use the same folder; a killed run leaves no lock.
find_program(flock flock)
if(flock)
  execute_process(COMMAND ${flock} ${FOLDER}/parts ${PROGRAM} ${tiny} --steps 12 --checkpoint ${FOLDER}/parts --resume
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  expect_result(2)
  expect(errors "^gpt: another run keeps its checkpoints in the folder '[^\n]*parts'; wait until it has ended[^\n]*\n$")
  run(${tiny} --steps 10 --checkpoint ${FOLDER}/parts --resume --rate 0.004 --text ${CMAKE_CURRENT_LIST_FILE})
  expect_result(0)
endif()

# If the newest file is damaged, the one before it is used, with a message.
run(${tiny} --steps 8 --every 3 --checkpoint ${FOLDER}/damaged)
file(APPEND ${FOLDER}/damaged/step-000000008.stagger "x")
run(${tiny} --steps 8 --every 3 --checkpoint ${FOLDER}/damaged --resume)
expect_result(0)
expect(errors "warning: [^\n]*step-000000008.stagger is damaged")
expect(errors "going on from [^\n]*step-000000006.stagger")
expect_same(${FOLDER}/whole/step-000000008.stagger ${FOLDER}/damaged/step-000000008.stagger)

# Killed repeatedly, by the time limit of execute_process.
set(long ${tiny} --steps 200 --every 1)
run(${long} --checkpoint ${FOLDER}/long)
expect_result(0)
set(kills 0)
foreach(time_s 0.05 0.1 0.15 0.08 0.12 0.2 0.07 0.11)
  file(GLOB found ${FOLDER}/killed/step-*.stagger)
  set(resume "")
  if(found)
    set(resume --resume)
  endif()
  execute_process(COMMAND ${PROGRAM} ${long} --checkpoint ${FOLDER}/killed ${resume} TIMEOUT ${time_s}
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(result MATCHES "timeout")
    math(EXPR kills "${kills} + 1")
  else()
    expect_result(0)
  endif()
endforeach()
message("killed ${kills} times")
file(GLOB found ${FOLDER}/killed/step-*.stagger)
set(resume "")
if(found)
  set(resume --resume)
endif()
run(${long} --checkpoint ${FOLDER}/killed ${resume})
expect_result(0)
expect_same(${FOLDER}/long/step-000000200.stagger ${FOLDER}/killed/step-000000200.stagger)
file(GLOB names RELATIVE ${FOLDER}/killed ${FOLDER}/killed/*)
if(NOT "${names}" STREQUAL "step-000000199.stagger;step-000000200.stagger")
  fail("should leave nothing but the last two checkpoints, not '${names}'")
endif()

# An interrupt ends the run after the step, with a checkpoint. Without --foreground, timeout interrupts twice.
find_program(timeout timeout)
if(timeout)
  execute_process(COMMAND ${timeout} --foreground --preserve-status -s INT 1.5 ${PROGRAM} ${tiny} --steps 1000000 --every 1000000
                          --checkpoint ${FOLDER}/interrupted
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  expect_result(130)
  expect(output "stopped after step [0-9]+ of 1000000; --resume goes on")
  run(${tiny} --steps 1000000 --checkpoint ${FOLDER}/interrupted --resume --stop-at 1)
  expect_result(0)
  expect(errors "going on from ")
endif()
