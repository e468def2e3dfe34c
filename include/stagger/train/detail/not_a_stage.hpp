// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The compiler errors for layers that cannot be trained, each of which names what is
///         missing. Nothing here is instantiated for a correct model.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include <stagger/model/sequential.hpp>

namespace stagger::detail {

enum class StageFault : std::uint8_t {
  said_already,  // another static_assert explains it
  is_pointer,
  is_function,
  is_abstract,
  no_input,
  no_output,
  not_regular,
  not_copyable,
  forward_takes_nothing_saved,
  no_forward,
  forward_loses_results,
  no_backward,
  backward_loses_dx,
  parameters_const,
  parameters_not_tied,
  no_weight_gradient,
  keeps_weights_wrongly,
};

template <class S>
concept TakesNothingSaved =
    requires(S& stage, Context& context, typename S::Input const& x, typename S::Output& y,
             NothingSaved& saved) { stage.forward(context, x, y, saved); };

// Whether T is what std::tie makes of Parameters in a function that is const.
template <class T> inline constexpr bool is_const_tie = false;
template <class... T>
inline constexpr bool is_const_tie<std::tuple<Parameter<T> const&...>> = sizeof...(T) != 0;
template <class T, std::size_t N>
inline constexpr bool is_const_tie<std::span<Parameter<T> const, N>> = true;

// Whether T is a std::tie with a Parameter of a type that Parameter has refused itself.
template <class T> inline constexpr bool is_refused_tie = false;
template <class... T> inline constexpr bool is_refused_tie<std::tuple<Parameter<T>&...>> = true;
template <class T, std::size_t N>
inline constexpr bool is_refused_tie<std::span<Parameter<T>, N>> = true;

template <class S> consteval StageFault stage_fault() {
  using enum StageFault;
  if constexpr (requires(S& stage) {
                  *stage;
                  stage.get();
                } || std::is_pointer_v<S>)
    return is_pointer;
  else if constexpr (requires { &S::operator(); } || std::is_function_v<std::remove_pointer_t<S>>)
    return is_function;
  else if constexpr (std::is_abstract_v<S>)
    return is_abstract;
  else if constexpr (!requires { typename S::Input; })
    return no_input;
  else if constexpr (!requires { typename S::Output; })
    return no_output;
  else if constexpr (!std::semiregular<typename S::Input> ||
                     !std::semiregular<typename S::Output> || !std::semiregular<SavedOf<S>>)
    return not_regular;
  else if constexpr (!std::copyable<S>)
    return not_copyable;
  else if constexpr (!HasForward<S>)
    return TakesNothingSaved<S> ? forward_takes_nothing_saved : no_forward;
  else if constexpr (LosesOutput<S> || LosesSaved<S>)
    return forward_loses_results;
  else if constexpr (!HasBackward<S> && !HasBackwardInput<S> && !HasBackwardWeight<S>)
    return no_backward;
  else if constexpr (LosesInputGradient<S>)
    return backward_loses_dx;
  else if constexpr (!TiesParameters<S>) {
    using Tie = std::remove_cvref_t<decltype(std::declval<S&>().parameters())>;
    return is_refused_tie<Tie> ? said_already
           : is_const_tie<Tie> ? parameters_const
                               : parameters_not_tied;
  } else if constexpr (KeepsWeightsWrongly<S>)
    return keeps_weights_wrongly;
  else
    return no_weight_gradient;
}

/// Says why `S` is not a stage.
template <class S> struct NotAStage {
  using enum StageFault;
  static constexpr StageFault fault = stage_fault<S>();
  template <StageFault F> static constexpr bool is_not = fault != F;
  static_assert(is_not<is_pointer>,
                "stagger: not a Stage but a pointer to one: give the layers themselves, by value");
  static_assert(is_not<is_function>,
                "stagger: not a Stage but a function: write a struct with Input, Output, forward "
                "and backward");
  static_assert(is_not<is_abstract>,
                "stagger: not a Stage: it is an abstract class, but layers are kept by value, each "
                "by its own type: Pipeline{First{}, Second{}}");
  static_assert(is_not<no_input>,
                "stagger: not a Stage: it has no public type Input; add 'using Input = ...;', in a "
                "class behind 'public:'");
  static_assert(is_not<no_output>,
                "stagger: not a Stage: it has no public type Output; add 'using Output = ...;', in "
                "a class behind 'public:'");
  static_assert(is_not<not_regular>,
                "stagger: not a Stage: its Input, Output and Saved must be default constructible "
                "and copyable, since the engine makes the objects that are passed on");
  static_assert(is_not<not_copyable>,
                "stagger: not a Stage: it cannot be copied and assigned; replace the member that "
                "cannot, such as a std::unique_ptr by a std::shared_ptr");
  static_assert(is_not<forward_takes_nothing_saved>,
                "stagger: not a Stage: it has a type Saved, but its forward takes NothingSaved&; "
                "take Saved& in forward and backward, or remove the type");
  static_assert(is_not<no_forward>,
                "stagger: not a Stage: it has no public 'void forward(Context&, Input const& x, "
                "Output& y, Saved& saved)'; without a type Saved, the last one is NothingSaved&");
  static_assert(is_not<forward_loses_results>,
                "stagger: not a Stage: y, dx and saved are taken by reference, or what forward "
                "writes is lost: forward(Context&, Input const& x, Output& y, Saved& saved)");
  static_assert(is_not<no_backward>,
                "stagger: not a Stage: it has no public 'void backward(Context&, Input const& x, "
                "Output const& dy, Input& dx, Saved& saved)', and neither backward_input with the "
                "same arguments nor backward_weight without dx");
  static_assert(is_not<backward_loses_dx>,
                "stagger: not a Stage: y, dx and saved are taken by reference, or what backward "
                "writes is lost: backward(Context&, Input const& x, Output const& dy, Input& dx, "
                "Saved& saved)");
  static_assert(is_not<parameters_const>,
                "stagger: not a Stage: its parameters() must not be const, since the engine takes "
                "over the values: 'auto parameters() { return std::tie(weight, bias); }'");
  static_assert(is_not<parameters_not_tied>,
                "stagger: not a Stage: its parameters() must return std::tie of all its "
                "Parameters, or a std::span of them: 'auto parameters() { return std::tie(weight, "
                "bias); }'");
  static_assert(is_not<no_weight_gradient>,
                "stagger: not a Stage: it adds to no gradient of its weights; add "
                "'void backward_weight(Context&, Input const& x, Output const& dy, Saved& saved)'");
  static_assert(is_not<keeps_weights_wrongly>,
                "stagger: not a Stage: 'void gradients_complete(Context&)' is for a layer that "
                "updates weights of its own; make it public, let it take a Context&, and leave "
                "parameters() out, whose weights the engine updates");
};

/// Says that `B` cannot follow `A`.
template <class A, class B> struct NeighboursDoNotFit {
  static constexpr bool fit = std::same_as<typename A::Output, typename B::Input>;
  static_assert(fit,
                "stagger: neighbouring stages do not fit: the Output of the first is not the Input "
                "of the second");
};

/// Says that `L` cannot follow another layer.
template <class L> struct NoInputGradient {
  static constexpr bool given = HasInputGradient<L>;
  static_assert(
      given,
      "stagger: only the first layer may leave out the gradient of its input; this one needs "
      "backward_input(Context&, x, dy, dx, saved) or backward(Context&, x, dy, dx, saved)");
};

/// Says that `L` cannot follow itself.
template <class L> struct RunDoesNotFit {
  static constexpr bool chain =
      std::same_as<typename L::Input, typename L::Output> && HasInputGradient<L>;
  static_assert(
      chain,
      "stagger: a std::vector of layers is a chain: the Input of its layers must be their "
      "Output, and each must give the gradient of its input");
};

}  // namespace stagger::detail
