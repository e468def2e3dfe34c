# SPDX-License-Identifier: Apache-2.0
# --paper hetpipe prints every claim beside what is published, and writes a curve for each kind of run.
include(${CMAKE_CURRENT_LIST_DIR}/../../check.cmake)

refused("--seeds 0 is out of range" --paper hetpipe --seeds 0)
refused("--seeds says how often --paper makes each run" --seeds 2)
run(--paper hetpipe --seeds 1 --csv curves.csv --chart curves.svg)
expect_result(0)
foreach(claim "C9 +VGG-19, images/s: ED with local parameters +606 +646 +yes" "C9 +[^\n]*NP +lowest +280 +yes"
        "C10 +[^\n]*ED, HD +alike +748, 725 +yes" "C13 +[^\n]*first or last most +[^\n]*yes"
        "C14 +[^\n]* 35 % +[0-9]+ % +yes" "C15 +[^\n]* 39 % +[0-9]+ % +yes" "C16 +[^\n]* 29 % +[0-9]+ % +yes"
        "C17 +[^\n]* 28 % +[0-9]+ % +yes" "C17 +[^\n]* 49 % +[0-9]+ % +yes" "C18 +[^\n]*alike +[0-9.]+ +yes"
        "C18 +[^\n]*1.05 .time. +[0-9.]+ +yes" "C19 +[^\n]* 62 % +[0-9]+ % +yes" "C20 +[^\n]* 18 % +[0-9]+ %")
  expect(output "\n${claim}")
endforeach()
file(READ ${FOLDER}/curves.csv csv)
foreach(run "VGG-19, Horovod" "VGG-19, D=32" "ResNet-152, 12 GPUs")
  if(NOT csv MATCHES "\n\"?${run}")
    fail("should write the curve of ${run}")
  endif()
endforeach()
