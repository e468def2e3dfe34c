# SPDX-License-Identifier: Apache-2.0
set(test_links stagger_oracles)
set(test_libcxx "/(failing_steps|step)_test\\.cpp$")  # the whole folder takes a minute and a half to compile
