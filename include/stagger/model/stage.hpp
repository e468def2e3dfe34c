// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The Stage concept.

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/rows.hpp>
#include <stagger/model/context.hpp>

namespace stagger {

/// The saved state of a stage that declares none.
struct NothingSaved {};

namespace detail {
template <class S> struct SavedType {
  using type = NothingSaved;
};
template <class S>
  requires requires { typename S::Saved; }
struct SavedType<S> {
  using type = typename S::Saved;
};
}  // namespace detail

/// What a stage saves in forward for backward: `S::Saved`, or NothingSaved.
template <class S> using SavedOf = typename detail::SavedType<S>::type;

template <class S>
concept HasForward =
    requires(S& stage, Context& context, typename S::Input const& x, typename S::Output& y,
             SavedOf<S>& saved) { stage.forward(context, x, y, saved); };

/// Whether S has a whole backward: gradients of the input and of the parameters in one function.
template <class S>
concept HasBackward = requires(S& stage, Context& context, typename S::Input const& x,
                               typename S::Output const& dy, typename S::Input& dx,
                               SavedOf<S>& saved) { stage.backward(context, x, dy, dx, saved); };

/// Whether S has the first half of a split backward: the gradient of the input.
template <class S>
concept HasBackwardInput = requires(
    S& stage, Context& context, typename S::Input const& x, typename S::Output const& dy,
    typename S::Input& dx, SavedOf<S>& saved) { stage.backward_input(context, x, dy, dx, saved); };

/// Whether S has the second half of a split backward: the gradients of the parameters.
template <class S>
concept HasBackwardWeight =
    requires(S& stage, Context& context, typename S::Input const& x, typename S::Output const& dy,
             SavedOf<S>& saved) { stage.backward_weight(context, x, dy, saved); };

template <class S>
concept HasParameters = requires(S& stage) { stage.parameters(); };

namespace detail {

/// Converts to a temporary of type T and to an lvalue. A reference parameter binds to one of them;
/// a parameter that is taken by value could be made from both, so the call is ambiguous.
template <class T> struct Lent {
  operator T&() const;
  operator T&&() const;
};

// A result that is taken by value, and so lost, accepts both `{}` and a temporary. A parameter of
// deduced type does not accept `{}`, and a view such as std::span<float> does not accept a
// temporary.
template <class S>
concept LosesOutput =
    requires(S& stage, Context& context, typename S::Input const& x, SavedOf<S>& saved) {
      stage.forward(context, x, {}, saved);
      stage.forward(context, x, typename S::Output(), saved);
    };
template <class S>
concept LosesInputGradient = requires(S& stage, Context& context, typename S::Input const& x,
                                      typename S::Output const& dy, SavedOf<S>& saved) {
  requires requires {
    stage.backward(context, x, dy, {}, saved);
    stage.backward(context, x, dy, typename S::Input(), saved);
  } || requires {
    stage.backward_input(context, x, dy, {}, saved);
    stage.backward_input(context, x, dy, typename S::Input(), saved);
  };
};
/// Whether forward takes `saved` by value, so that what it saves is lost.
template <class S>
concept LosesSaved =
    !std::is_empty_v<SavedOf<S>> &&
    requires(S& stage, Context& context, typename S::Input const& x, typename S::Output& y) {
      stage.forward(context, x, y, {});
      stage.forward(context, x, y, SavedOf<S>());
      requires !requires(Lent<SavedOf<S>> const& saved) { stage.forward(context, x, y, saved); };
    };

template <class T> inline constexpr bool is_tie = false;
template <ParameterElement... T> inline constexpr bool is_tie<std::tuple<Parameter<T>&...>> = true;

}  // namespace detail

/// Whether S has `parameters()`, which returns a `std::tie` of Parameters.
template <class S>
concept TiesParameters =
    !HasParameters<S> ||
    detail::is_tie<std::remove_cvref_t<decltype(std::declval<S&>().parameters())>>;

/// A stage, or a layer of one: any copyable type with
///
/// @code
///     using Input = ...;     // default constructible and copyable
///     using Output = ...;    // likewise
///     // Likewise; optional. The engine owns one for each microbatch in flight.
///     struct Saved { ... };
///
///     void forward(Context&, Input const& x, Output& y, Saved&);
///
///     void backward_input(Context&, Input const& x, Output const& dy, Input& dx, Saved&);
///
///     void backward_weight(Context&, Input const& x, Output const& dy, Saved&);
///
///     auto parameters() { return std::tie(weight, bias); }  // optional
/// @endcode
///
/// Results are written into objects of the engine (`y`, `dx`, Saved), which are taken by reference
/// and keep their memory from one microbatch to the next; x and dy stay valid until the last
/// function that takes them returns. A stage whose backward cannot be split has one
/// `backward(Context&, x, dy, dx, Saved&)` instead. `backward_weight` may be omitted if there are
/// no parameters; only the first stage may omit `backward_input`.
///
/// `y` and `dx` arrive with the size of an earlier microbatch, or empty: a stage sizes them before
/// it writes them, dx like x. Gradients are *added* to `context.gradient(parameter)`: it holds the
/// sum over the microbatches so far, and a stage that assigns to it trains with the last microbatch
/// alone. A stage keeps nothing that belongs to a microbatch and draws random numbers only from
/// `context.random_seed()`, so that recomputation repeats them.
///
/// @throws Error  mismatch, from a step, if a stage leaves dx with another number of elements than
///                x, or y empty where x is not; for types with `size()` and `data()`, or with
///                rows, on devices of the host
template <class S>
concept Stage =
    std::copyable<S> && std::semiregular<typename S::Input> &&
    std::semiregular<typename S::Output> && std::semiregular<SavedOf<S>> && HasForward<S> &&
    !detail::LosesOutput<S> && !detail::LosesSaved<S> && !detail::LosesInputGradient<S> &&
    TiesParameters<S> && (HasBackward<S> || HasBackwardInput<S> || HasBackwardWeight<S>) &&
    (!HasParameters<S> || HasBackward<S> || HasBackwardWeight<S>);

/// Whether a stage can hand a gradient to the stage before it.
template <class S>
concept HasInputGradient = HasBackward<S> || HasBackwardInput<S>;

namespace detail {

[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse_output(Context const& context) {
  raise(Errc::mismatch, "forward of layer ", context.layer(),
        " left y empty, but x is not; size y before you write it, as with y.resize_like(x)");
}
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse_input_gradient(
    Context const& context, std::size_t given, std::size_t wanted) {
  raise(Errc::mismatch, "backward of layer ", context.layer(), " left dx with a size of ", given,
        ", but x has ", wanted, "; size dx before you write it, as with dx.resize_like(x)");
}
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse_output_gradient(
    std::size_t given, std::size_t wanted) {
  raise(Errc::mismatch, "the loss left dy with a size of ", given, ", but the model's output has ",
        wanted, "; size dy before you write it, as with dy.resize_like(y)");
}

template <class T>
concept HasSizeAndData = requires(T const& value) {
  { value.size() } -> std::convertible_to<std::size_t>;
  *value.data();
};
/// Whether the gradient of a value must have its size: whole numbers, such as tokens, have none.
template <class T> inline constexpr bool gradient_has_size = Rows<T>::exist;
template <HasSizeAndData T>
inline constexpr bool gradient_has_size<T> =
    !std::is_integral_v<std::remove_cvref_t<decltype(*std::declval<T const&>().data())>>;

/// The number of elements of a value, or of its rows if it does not count its elements.
template <class T> [[nodiscard]] std::size_t size_of(T const& value) {
  if constexpr (HasSizeAndData<T>)
    return value.size();
  else
    return Rows<T>::count(value);
}

/// Checks what forward has written. A list, such as a std::vector, may be empty by right, and so
/// may a tensor to which a stage has given an extent.
template <class X, class Y>
[[gnu::always_inline]] inline void check_output(Context const& context, X const& x, Y const& y) {
  if constexpr (RowSplittable<Y> && HasSizeAndData<Y>) {
    if (context.enqueues() || y.size() != 0) [[likely]]
      return;
    if constexpr (requires { y.extents(); })
      for (std::size_t const extent : y.extents())
        if (extent != 0) return;
    if constexpr (HasSizeAndData<X> || Rows<X>::exist)
      if (size_of(x) == 0) return;
    refuse_output(context);
  }
}

/// Checks what backward has written. Nothing reads the gradient of the model's input.
template <class X>
[[gnu::always_inline]] inline void check_input_gradient(Context const& context, X const& x,
                                                        X const& dx) {
  if constexpr (gradient_has_size<X>)
    if (!context.enqueues() && size_of(dx) != size_of(x) && context.layer() != 0) [[unlikely]]
      refuse_input_gradient(context, size_of(dx), size_of(x));
}

/// Checks what a loss has written.
template <class Y>
[[gnu::always_inline]] inline void check_output_gradient(Context const& context, Y const& y,
                                                         Y const& dy) {
  if constexpr (gradient_has_size<Y>)
    if (!context.enqueues() && size_of(dy) != size_of(y)) [[unlikely]]
      refuse_output_gradient(size_of(dy), size_of(y));
}

}  // namespace detail

}  // namespace stagger
