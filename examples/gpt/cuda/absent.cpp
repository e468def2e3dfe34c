// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/error.hpp>

#include "train.hpp"

namespace gpt {

namespace {

[[noreturn]] void refuse() {
  throw stagger::Error(stagger::Errc::bad_configuration,
                       "this program was built without CUDA; build it where nvcc and cuBLAS are, "
                       "or leave --device cuda out");
}

}  // namespace

Outcome train_on_gpu(Settings const&, char const*) { refuse(); }

stagger::cluster::Profile profile_on_gpu(Settings const&, Text const&, int, int) { refuse(); }

}  // namespace gpt
