# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=... -DSOURCE=... -DSTAGING=... -DTREE=... -P install.cmake
#
# Installs into STAGING and moves the tree to TREE, where the other tests use it. Fails when a file
# names the folder it came from, when a header is missing, or when anything else was installed.

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${STAGING} ${TREE})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${STAGING} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
cmake_path(GET TREE PARENT_PATH parent)
file(MAKE_DIRECTORY ${parent})
file(RENAME ${STAGING} ${TREE})

file(GLOB_RECURSE files RELATIVE ${TREE} ${TREE}/*)
foreach(file IN LISTS files)
  file(READ ${TREE}/${file} text)
  foreach(folder IN ITEMS ${SOURCE} ${BUILD} ${STAGING})
    string(REGEX REPLACE "([][+.*()^$?|\\])" "\\\\\\1" pattern "${folder}")
    if(text MATCHES "(^|[^A-Za-z0-9_.}/-])${pattern}(/|\"|$)")  # the path itself, not the end of a longer one
      message(SEND_ERROR "${file} of the install tree names ${folder}")
    endif()
  endforeach()
endforeach()

file(GLOB_RECURSE headers RELATIVE ${SOURCE} ${SOURCE}/include/*.hpp ${SOURCE}/include/*.cuh)
foreach(header IN LISTS headers)
  if(NOT header IN_LIST files)
    message(SEND_ERROR "${header} was not installed")
  endif()
endforeach()
list(REMOVE_ITEM files ${headers})
list(FILTER files EXCLUDE REGEX "^lib/cmake/stagger/(stagger-[a-z_-]+|Find[A-Za-z0-9]+)\\.cmake$|^share/doc/stagger/")
if(files)
  message(SEND_ERROR "installed, but neither header nor CMake text: ${files}")
endif()
