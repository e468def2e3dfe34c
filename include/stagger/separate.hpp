// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What STAGGER_SEPARATE_COMPILATION leaves out, once for a program: the engine, its
/// threads, its virtual clock. Include it in one source file, and define that macro for all others,
/// which then compile in less than half the time; or let CMake do both:
/// stagger_add_separate(<target>).

#include <stagger/host/detail/threads_backend.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/sim/detail/virtual_clock_backend.hpp>

namespace stagger {

template schedule::Table schedule::table_of(schedule::OneFOneB const&, Shape);
template schedule::Table schedule::table_of(schedule::GPipe const&, Shape);

template void detail::adopt_parameter(List<detail::ParameterDeclaration>&, Parameter<float>&);
template void detail::adopt_parameter(List<detail::ParameterDeclaration>&, Parameter<double>&);
template void detail::LayerParameters::update(optimizer::AdamW const&,
                                              detail::UpdateStep const&) noexcept;
template void detail::LayerParameters::update(optimizer::Sgd const&,
                                              detail::UpdateStep const&) noexcept;

template std::shared_ptr<detail::Session> detail::make_session(host::Threads const&,
                                                               List<detail::Layer>,
                                                               detail::Setup const&);
template std::shared_ptr<detail::Session> detail::make_session(sim::VirtualClock const&,
                                                               List<detail::Layer>,
                                                               detail::Setup const&);

}  // namespace stagger
