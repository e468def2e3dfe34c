# SPDX-License-Identifier: Apache-2.0
# The profile of the model: a line for each layer with exact sizes, and errors of planners for impossible requests.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

run(--text ${TEXT} --layers 3 --width 16 --heads 2 --context 12 --batch 7 --microbatches 5 --profile profile.json)
expect_result(0)
expect(output "profile.json: 8 layers, 2 sequences forward and backward in [0-9.]+ [mun]?s, [0-9.]+ KiB of parameters\n")
file(READ ${FOLDER}/profile.json profile)
string(JSON layers LENGTH "${profile}" layers)
string(JSON batch GET "${profile}" batch)
string(JSON first GET "${profile}" layers 0 name)
string(JSON block GET "${profile}" layers 2 name)
string(JSON bytes GET "${profile}" layers 1 activation_bytes)
string(JSON parameters GET "${profile}" layers 0 parameter_bytes)
math(EXPR activation "2 * 12 * 16 * 4")   # sequences, context, width, bytes of a float
math(EXPR tables "(256 + 12) * 16 * 4")   # a row for each byte and for each place
set(output "${layers} ${batch} ${first} ${block} ${bytes} ${parameters}")
expect(output "^8 2 embedding block 1 mlp ${activation} ${tables}$")

run(--text ${TEXT} --profile no/such/folder/profile.json)
expect_result(2)
expect(errors "^gpt: [^\n]*no/such/folder[^\n]*\n$")
