// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What STAGGER_SEPARATE_COMPILATION leaves out, once for a program: the engine, its
/// threads, its virtual clock. Include it in one source file, and define that macro for all others,
/// which then compile in less than half the time; or let CMake do both:
/// stagger_add_separate(<target>).

#include <stagger/engine/make_session.hpp>
#include <stagger/host/detail/threads_backend.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/schedule/catalog.hpp>
#include <stagger/schedule/verify.hpp>
#include <stagger/sim/detail/virtual_clock_backend.hpp>
#include <stagger/sim/virtual_clock.hpp>

namespace stagger {

template schedule::Table schedule::table_of(schedule::Auto const&, Shape);
template schedule::Table schedule::table_of(schedule::Chimera const&, Shape);
template schedule::Table schedule::table_of(schedule::DualPipe const&, Shape);
template schedule::Table schedule::table_of(schedule::DualPipeV const&, Shape);
template schedule::Table schedule::table_of(schedule::Fifo const&, Shape);
template schedule::Table schedule::table_of(schedule::ForwardOnly const&, Shape);
template schedule::Table schedule::table_of(schedule::GPipe const&, Shape);
template schedule::Table schedule::table_of(schedule::Hanayo const&, Shape);
template schedule::Table schedule::table_of(schedule::Interleaved const&, Shape);
template schedule::Table schedule::table_of(schedule::LoopedBfs const&, Shape);
template schedule::Table schedule::table_of(schedule::OneFOneB const&, Shape);
template schedule::Table schedule::table_of(schedule::PipeDream const&, Shape);
template schedule::Table schedule::table_of(schedule::PipeDream2BW const&, Shape);
template schedule::Table schedule::table_of(schedule::Seq1F1B const&, Shape);
template schedule::Table schedule::table_of(schedule::V1F1B const&, Shape);
template schedule::Table schedule::table_of(schedule::VHalf const&, Shape);
template schedule::Table schedule::table_of(schedule::VMin const&, Shape);
template schedule::Table schedule::table_of(schedule::ZeroBubbleH1 const&, Shape);
template schedule::Table schedule::table_of(schedule::ZeroBubbleH2 const&, Shape);
template schedule::Table schedule::table_of(schedule::ZeroBubbleV const&, Shape);
template void schedule::detail::require_legal(schedule::Table const&);

template void detail::adopt_parameter(List<detail::ParameterDeclaration>&, Parameter<float>&, int);
template void detail::adopt_parameter(List<detail::ParameterDeclaration>&, Parameter<double>&, int);
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
