// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A minibatch, divided into microbatches of which all replicas have the same number of
///         rows; and what happens to the last minibatch of a data set, which has fewer.

#include <cstddef>
#include <cstdint>

#include <stagger/core/error.hpp>
#include <stagger/core/rows.hpp>
#include <stagger/engine/step.hpp>

namespace stagger {

/// What happens to a minibatch whose rows cannot be divided evenly.
enum class Ragged : std::uint8_t {
  refuse,
  drop,  ///< it is left out
  pad,   ///< it gets rows that count as nothing in the loss
};

/// How a minibatch is divided.
struct Division {
  std::size_t microbatches = 1;
  std::size_t ranks = 1;  ///< that share the rows of a microbatch: replicas of a position; for
                          ///< positions with several numbers, their least common multiple
  Ragged ragged = Ragged::refuse;
};

/// Divides a minibatch into microbatches with the same number of rows, a multiple of the ranks. The
/// mean loss and the gradients of a padded minibatch are those of its own rows; only layers that
/// mix rows, such as batch normalisation, see the others, which are copies of its first one.
///
/// @code
///     Division const division{.microbatches = 4, .ranks = 2, .ragged = Ragged::pad};
///     loss::CrossEntropy<> const loss{.ignored = -1};
///     if (divide(images, labels, division, loss, batch)) run(train.step(batch));
/// @endcode
/// @param inputs   [rows]
/// @param targets  [rows], or a multiple
/// @param loss     of the pipeline; to pad, it has `padding()`, a target of one row that counts as
///                 nothing
/// @param batch    overwritten
/// @return         false if the minibatch is left out
/// @throws Error   bad_configuration for no rows, microbatches or ranks, for rows that are no
///                 multiple where that is refused, naming the next one, and for targets that do not
///                 fit the inputs
template <class In, class Loss>
[[nodiscard]] bool divide(In const& inputs, typename Loss::Target const& targets,
                          Division const& division, Loss const& loss,
                          Batch<In, typename Loss::Target>& batch) {
  using Target = typename Loss::Target;
  using InRows = detail::Rows<In>;
  using TargetRows = detail::Rows<Target>;
  static_assert(InRows::exist && TargetRows::exist,
                "stagger: a minibatch is divided by rows; give its inputs and targets rows(), "
                "resize_rows(like, n) and copy_rows(at, from, first, n)");
  std::size_t const rows = InRows::count(inputs);
  std::size_t const multiple = division.microbatches * division.ranks;
  if (rows == 0 || multiple == 0)
    raise(Errc::bad_configuration, "a minibatch of ", counted(rows, "row"),
          " cannot be divided into ", counted(division.microbatches, "microbatch"), " for ",
          counted(division.ranks, "rank"), "; use at least 1 of each");
  std::size_t const each = TargetRows::count(targets) / rows;  // rows of the target for each row
  if (each * rows != TargetRows::count(targets) || each == 0)
    raise(Errc::bad_configuration, "a minibatch has ", counted(rows, "row"), ", and its target ",
          TargetRows::count(targets), "; give the target as many, or a multiple");
  std::size_t const padded = (rows + multiple - 1) / multiple * multiple;
  if (padded != rows && division.ragged == Ragged::drop) return false;
  if (padded != rows && division.ragged == Ragged::refuse)
    raise(Errc::bad_configuration, "a minibatch of ", counted(rows, "row"),
          " cannot be divided evenly into ", counted(division.microbatches, "microbatch"), " for ",
          counted(division.ranks, "rank"), "; give it ", padded,
          ", the next multiple, or let Division::ragged drop or pad it");
  Target padding;
  if (padded != rows) {
    if constexpr (requires { loss.padding(); })
      padding = loss.padding();
    else
      raise(
          Errc::bad_configuration,
          "a minibatch cannot be padded for this loss, which has no padding(): a target of one row "
          "that counts as nothing; use Ragged::drop");
  }
  batch.inputs.resize(division.microbatches);
  batch.targets.resize(division.microbatches);
  std::size_t const own = padded / division.microbatches;
  for (std::size_t m = 0; m < division.microbatches; ++m) {
    In& input = batch.inputs[m];
    Target& target = batch.targets[m];
    std::size_t const first = m * own;
    std::size_t const real = first >= rows ? 0 : rows - first < own ? rows - first : own;
    InRows::resize(input, inputs, own);
    TargetRows::resize(target, targets, own * each);
    InRows::copy(input, 0, inputs, first, real);
    TargetRows::copy(target, 0, targets, first * each, real * each);
    for (std::size_t r = real; r < own; ++r) InRows::copy(input, r, inputs, 0, 1);
    for (std::size_t r = real * each; r < own * each; ++r)
      TargetRows::copy(target, r, padding, 0, 1);
  }
  return true;
}

}  // namespace stagger
