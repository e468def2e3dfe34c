# SPDX-License-Identifier: Apache-2.0
# --paper hetpipe prints every claim beside what is published, and writes a curve for each kind of run. So does --paper
# osp, whose claims about accuracy need longer runs than here to come out.
include(${CMAKE_CURRENT_LIST_DIR}/../../check.cmake)

refused("--seeds 0 is out of range" --paper hetpipe --seeds 0)
refused("--seeds says how often --paper makes each run" --seeds 2)
run(--paper hetpipe --seeds 1 --csv curves.csv --chart curves.svg)
expect_result(0)
foreach(claim "C9 +VGG-19, images/s: Horovod on 16 +339 +- +-" "C9 +[^\n]*ED with local parameters +606 +646 +yes"
        "C9 +[^\n]*ED, HD +below Horovod +324, 319 +yes" "C9 +[^\n]*NP +lowest +280 +yes"
        "C10 +[^\n]*Horovod on 12 +415 +- +-" "C10 +[^\n]*ED with local parameters +580 +756 +yes"
        "C10 +[^\n]*ED, HD +alike +748, 725 +yes" "C10 +[^\n]*NP +lowest +286 +yes"
        "C13 +VGG-19[^\n]*first or last most +[^\n]*yes" "C13 +ResNet-152[^\n]*first or last most +[^\n]*yes"
        "C14 +[^\n]* 35 % +[0-9]+ % +yes" "C15 +[^\n]* 39 % +[0-9]+ % +yes" "C16 +[^\n]* 29 % +[0-9]+ % +yes"
        "C17 +[^\n]* 28 % +[0-9]+ % +yes" "C17 +[^\n]* 49 % +[0-9]+ % +yes" "C18 +[^\n]*alike +[0-9.]+ +yes"
        "C18 +[^\n]*1.05 .time. +[0-9.]+ +yes" "C19 +[^\n]* 62 % +[0-9]+ % +yes" "C20 +[^\n]* 18 % +[0-9]+ % +yes"
        "C21 [^\n]*theorem 1 +see test/unit/staleness/wave_convergence_claims_test.cpp +-")
  expect(output "\n${claim}")
endforeach()
file(READ ${FOLDER}/curves.csv csv)
foreach(run "VGG-19, Horovod" "VGG-19, D=32" "ResNet-152, 12 GPUs")
  if(NOT csv MATCHES "\n\"${run}\",[0-9.]+,[0-9.]+\n")
    fail("should write the curve of ${run}, a name with a comma in quotes")
  endif()
endforeach()

refused("--steps is chosen by --paper" --paper hetpipe --steps 20)
refused("--csv is not written by --paper osp" --paper osp --csv curves.csv)
run(--paper osp --seeds 1 --steps 20)
expect_result(0)
foreach(model "ResNet-50 +1.6" "VGG-16 +2.4" "InceptionV3 +1.1" "ResNet-101 +1.5" "BERT-base +4.4")
  expect(output "\n${model}[0-9][ 0-9.]+\n")
endforeach()
foreach(claim "T1 [^\n]*up to 1.5 +1.2 or more for 4, most 1.8[0-9] +yes" "T2 [^\n]*all four +4 of four +yes" "T3 [^\n]*near 1 +[0-9.]+ +yes"
        "T4 [^\n]* 0.6[0-9]? +yes" "T5 [^\n]* 0.00, 0.44, 0.6[12], 0.76 +yes" "T6 [^\n]* 10.0 % to 22.[67] % +yes"
        "T7 [^\n]*up to 6 +4.[89][0-9]? +yes" "O1 [^\n]*see benchmark/late.cpp" "O2 [^\n]*see benchmark/late.cpp"
        "O3 [^\n]*see test/unit/parameters/late_layers_test.cpp" "O4 [^\n]*up to 20 +-?[0-9.]+ +-" "D1 +nothing late [^\n]*yes +yes +yes"
        "D1 +everything late[^\n]* no")
  expect(output "\n${claim}")
endforeach()
string(REGEX MATCHALL "\n2.0 [^\n]+\n" links "${output}")  # of each network, the last link
foreach(number 1 2 3 4 5 6 7)
  string(REGEX MATCHALL "\nA${number} " rows "${output}")
  list(APPEND of_both ${rows})
endforeach()
list(LENGTH links tables)
list(LENGTH of_both rows)
if(NOT tables EQUAL 2 OR NOT rows EQUAL 30)
  fail("should show two networks and the claims A1 to A7 of each")
endif()
