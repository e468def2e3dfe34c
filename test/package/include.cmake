# SPDX-License-Identifier: Apache-2.0
# cmake -DCOMPILER=... -DINCLUDE=... -DCONSUMER=... -DPROGRAM=... -P include.cmake
#
# The headers by -I and nothing else; then once more with the engine in a source file of its own.

cmake_minimum_required(VERSION 3.25)

cmake_path(GET PROGRAM PARENT_PATH folder)
file(MAKE_DIRECTORY ${folder})
execute_process(COMMAND ${COMPILER} -std=c++20 -I ${INCLUDE} ${CONSUMER}/main.cpp ${CONSUMER}/other.cpp -pthread
                        -o ${PROGRAM} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${PROGRAM} COMMAND_ERROR_IS_FATAL ANY)

file(WRITE ${folder}/engine.cpp "#include <stagger/separate.hpp>\n")
execute_process(COMMAND ${COMPILER} -std=c++20 -I ${INCLUDE} -DSTAGGER_SEPARATE_COMPILATION ${CONSUMER}/main.cpp
                        ${CONSUMER}/other.cpp ${folder}/engine.cpp -pthread -o ${PROGRAM}
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${PROGRAM} COMMAND_ERROR_IS_FATAL ANY)
