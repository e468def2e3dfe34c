# SPDX-License-Identifier: Apache-2.0
set(test_links vgg_model)
set(test_own_flags TRUE)
