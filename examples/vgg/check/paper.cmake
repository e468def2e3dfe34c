# SPDX-License-Identifier: Apache-2.0
# --paper prints both tables and every claim beside what is published, and draws the trade-off; --device clock trains the
# published network in the throughput that the table has.
include(${CMAKE_CURRENT_LIST_DIR}/../../check.cmake)

run(--paper --chart chart.svg)
expect_result(0)
foreach(line "FC0 +4194304 +4194304\n" " 32 +4 +8 +2062.84 +2088.50 +[+]1.2 % +20[0-9.]+ +[+-]?[0-9.]+ %\n"
        "\n *1 +6987456 +0.0 % +0 +12228048 +965.92 +97[0-9.]+\n"
        "\n *2 +4366016 +37.5 % +[0-9]+ +[0-9]+ +941.84 +94[0-9.]+\n"
        "\n *4 +3055296 +56.3 % +[0-9]+ +[0-9]+ +- +82[0-9.]+\n"
        "\n *8 +2399936 +65.7 % +1261568 +3035088 +520.00 +519[0-9.]+\n")
  expect(output "${line}")
endforeach()
foreach(number RANGE 1 10)
  expect(output "\nQ${number} +[^\n]* yes\n")
endforeach()
if(output MATCHES " no\n")
  fail("should reproduce every claim")
endif()
file(READ ${FOLDER}/chart.svg chart)
if(NOT chart MATCHES "^<svg .*images/s.*</svg>\n$")
  fail("should draw the trade-off")
endif()
file(REMOVE ${FOLDER}/chart.svg)

run(--device clock --workers 2 --mp 2 --microbatches 2 --stages 1 --width 64 --batch 32 --steps 1 --threshold 225)
expect_result(0)
expect(output "\n236[.][0-9]+ images/s in virtual time\n$")
