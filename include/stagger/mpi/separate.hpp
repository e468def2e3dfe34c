// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The definitions that STAGGER_SEPARATE_COMPILATION_MPI leaves out: ranks in several
///         processes. Include it in one source file of a program, like stagger/separate.hpp.

#include <stagger/engine/make_session.hpp>
#include <stagger/mpi/processes.hpp>

template std::shared_ptr<stagger::detail::Session> stagger::detail::make_session(
    stagger::mpi::Processes const&, List<Layer>, Setup&);
