# SPDX-License-Identifier: Apache-2.0
# Documents whose last part a test makes.

# made_part(<document> <test> <write> <text> <remedy>): writes the text behind the line that ends the part written by
# hand, or fails with the remedy if it is not what stands there.
function(made_part document test write made remedy)
  set(marker "<!-- made by test/${test}.cmake, up to the end -->\n")
  file(READ ${document} text)
  string(FIND "${text}" "${marker}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${document} has no line ${marker}")
  endif()
  string(SUBSTRING "${text}" 0 ${at} head)
  set(whole "${head}${marker}${made}")
  if(write)
    file(WRITE ${document} "${whole}")
  elseif(NOT text STREQUAL whole)
    message(FATAL_ERROR "${document} is out of date. To write it: ${remedy}")
  endif()
endfunction()
