// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The definitions that STAGGER_SEPARATE_COMPILATION_CUDA leaves out: a pipeline on the
///         GPUs of a process. Include it in one source file of a program.

#include <stagger/cuda/gpus.hpp>
#include <stagger/engine/make_session.hpp>

template std::shared_ptr<stagger::detail::Session> stagger::detail::make_session(
    stagger::cuda::Gpus const&, List<Layer>, Setup&);
