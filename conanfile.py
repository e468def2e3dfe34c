# SPDX-License-Identifier: Apache-2.0
"""Conan recipe: carries the install tree of CMakeLists.txt, so that users of Conan and users of CMake
write the same find_package(stagger COMPONENTS ...)."""
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import load

required_conan_version = ">=2.0"


class StaggerConan(ConanFile):
    name = "stagger"
    description = "Header-only C++20 library for pipeline-parallel training"
    license = "Apache-2.0"
    topics = ("pipeline-parallelism", "schedules", "training", "coroutines", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    # No check of compiler.cppstd: the installed targets demand C++20 themselves, and a freshly detected
    # profile says gnu17 for compilers that can do much more.
    #
    # system: the consumer's machine brings Boost or range-v3, and nothing is asked of a remote.
    # conan: the recipe requires them.
    options = {"with_host": ["system", "conan"], "with_ranges": ["system", "conan"],
               "with_json": ["system", "conan"]}
    default_options = {"with_host": "system", "with_ranges": "system", "with_json": "system",
                       "boost/*:header_only": True}
    exports_sources = "CMakeLists.txt", "cmake/*", "include/*", "LICENSE", "README.md", "CHANGELOG.md"
    no_copy_source = True

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "include", "stagger", "version.hpp"))
        numbers = [re.search(rf"#define STAGGER_VERSION_{part} (\d+)", text).group(1)
                   for part in ("MAJOR", "MINOR", "PATCH")]
        self.version = ".".join(numbers)

    def requirements(self):
        if self.options.with_host == "conan":
            self.requires("boost/[>=1.81 <2]", transitive_headers=True)
        if self.options.with_ranges == "conan":
            self.requires("range-v3/0.12.0", transitive_headers=True)
        if self.options.with_json == "conan":
            self.requires("nlohmann_json/[>=3.11 <4]", transitive_headers=True)

    def package_id(self):
        self.info.clear()  # settings and options change what is required, never a file

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False  # nothing is written beside the sources
        for what in ("TESTS", "EXAMPLES", "BENCHMARKS"):
            toolchain.cache_variables[f"STAGGER_BUILD_{what}"] = False
        toolchain.cache_variables["STAGGER_COMPONENTS"] = ""
        toolchain.generate()

    def build(self):
        CMake(self).configure()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        # The installed stagger-config.cmake does the work, also for components.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "stagger")]
