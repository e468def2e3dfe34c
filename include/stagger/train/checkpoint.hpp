// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Checkpoints: parameters and optimizer state in files that are complete or absent.
///
/// Format, all numbers little-endian, every field and every array padded with zeros to a multiple
/// of 8 bytes:
///
///     8 bytes   "stgrckpt"
///     u32 u32   version of the format (3), number of parameters
///     u64       size of the file, in bytes
///     i64 u64   step, seed
///     u64 u64   lengths of the two texts, in bytes
///     u64 u64   length of the optimizer's name (0: unknown), number of its numbers
///     ...       model, settings, the optimizer's name
///     then for each of its numbers
///     u32 u32   kind (0: f64, 1: i64, 2: u64), 0
///     u64 u64   bits: as it was given to Pipeline::with, and as it was at this step
///     then for each parameter
///     u32 u32   element type (0: f32, 1: f64), length of the name
///     u64       0: unknown, or 1 + rows of the matrix that it is, 1: it is none
///     u64 x 3   bytes of the value and of the two states of the optimizer
///     ...       name, value, first state, second state
///     u64       checksum of all words of 8 bytes before: from
///               h = 0x9e3779b97f4a7c15: h = (h ^ word) * 0xff51afd7ed558ccd; h ^= h >> 32
///
/// Files of version 1, which say nothing of the optimizer, and of version 2, which say nothing of rows,
/// are read, too.

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <stagger/core/checked_file.hpp>
#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/train/detail/optimizer_record.hpp>

namespace stagger {

/// The state of a run, besides its parameters.
struct CheckpointState {
  std::int64_t step = 0;   ///< optimizer steps taken, 0 to 2^48
  std::uint64_t seed = 0;  ///< of the run
  std::string model;       ///< must match when restored: "gpt, width 128, ..."
  std::string settings;    ///< a description that the caller compares
};

struct RestoredCheckpoint {
  CheckpointState state;
  std::string file;                   ///< path of the checkpoint
  std::vector<std::string> warnings;  ///< one sentence for each newer file that could not be used,
                                      ///< and for one whose optimizer was not, or only in part,
                                      ///< compared
};

/// What is taken from a checkpoint.
enum class Restore : std::uint8_t {
  everything,  ///< values, the optimizer's state, and its numbers where they changed in the run,
               ///< as a rate that follows a schedule does; another optimizer, or other numbers,
               ///< are refused. Numbers of several types are only known, restored and compared
               ///< if the optimizer has `fields()`; without it there is a warning
  other_optimizer,  ///< values and state, whichever optimizer wrote them, if they have the sizes of
                    ///< this program's, which keeps its own numbers
  values  ///< values alone, whichever optimizer wrote them, to predict or to begin anew: state becomes
          ///< zero, and the trainer is at step 0
};

namespace detail {

inline constexpr std::string_view checkpoint_prefix = "step-";
inline constexpr std::string_view checkpoint_suffix = ".stagger";

/// The step of a file that is named like a checkpoint; -1 for other names.
[[nodiscard]] inline std::int64_t step_of(std::string_view name) {
  if (!name.starts_with(checkpoint_prefix) || !name.ends_with(checkpoint_suffix)) return -1;
  if (name.size() <= checkpoint_prefix.size() + checkpoint_suffix.size()) return -1;
  char const* const end = name.data() + name.size() - checkpoint_suffix.size();
  std::int64_t step = 0;
  auto const [stop, error] = std::from_chars(name.data() + checkpoint_prefix.size(), end, step);
  return error == std::errc{} && stop == end ? step : -1;
}

/// Keeps the checkpoint of `step` and the previous one, and removes the others and the temporary
/// files that nobody writes any more. Files that cannot be removed stay, which does no harm.
inline void remove_other_checkpoints(std::string const& folder, std::int64_t step) {
  auto const names = names_in(folder);
  std::int64_t before = -1;
  for (std::string const& name : names)
    if (step_of(name) < step) before = std::max(before, step_of(name));
  std::string const temporary = text(".", checkpoint_prefix);
  for (std::string const& name : names) {
    std::int64_t const other = step_of(name);
    std::string const path = text(folder, "/", name);
    if (other >= 0 && other != step && other != before) ::unlink(path.c_str());
    if (name.starts_with(temporary) && name.ends_with(".tmp")) remove_abandoned(path);
  }
}

inline constexpr std::string_view checkpoint_magic = "stgrckpt";
inline constexpr std::uint32_t checkpoint_version = 3;

[[nodiscard]] inline std::array<std::span<std::byte>, 3> blocks_of(
    ParameterState const& parameter) {
  return {parameter.value, parameter.state[0], parameter.state[1]};
}
[[nodiscard]] inline std::array<std::uint64_t, 3> block_bytes_of(ParameterShape const& shape) {
  return {shape.bytes, shape.states > 0 ? shape.bytes : 0, shape.states > 1 ? shape.bytes : 0};
}
[[nodiscard]] inline List<ParameterShape> shapes_of(std::span<ParameterState const> parameters) {
  List<ParameterShape> shapes;
  for (auto const& p : parameters)
    shapes.push_back({p.name,
                      p.type,
                      p.value.size(),
                      p.state[1].empty() ? (p.state[0].empty() ? 0 : 1) : 2,
                      {}});
  return shapes;
}

inline void write_head(CheckedWriter& out, CheckpointState const& state,
                       OptimizerRecord const& optimizer, List<ParameterShape> const& shapes) {
  std::uint64_t size = 72 + padded(state.model.size()) + padded(state.settings.size()) +
                       padded(optimizer.name.size()) + optimizer.given.size() * 24 + 8;
  for (auto const& shape : shapes) {
    size += 40 + padded(shape.name.size());
    for (std::uint64_t const bytes : block_bytes_of(shape)) size += padded(bytes);
  }
  out.text(checkpoint_magic);
  out.u32(checkpoint_version, static_cast<std::uint32_t>(shapes.size()));
  out.u64(size);
  out.u64(static_cast<std::uint64_t>(state.step));
  out.u64(state.seed);
  out.u64(state.model.size());
  out.u64(state.settings.size());
  out.u64(optimizer.name.size());
  out.u64(optimizer.given.size());
  out.text(state.model);
  out.text(state.settings);
  out.text(optimizer.name);
  for (std::size_t i = 0; i < optimizer.given.size(); ++i) {
    out.u32(static_cast<std::uint32_t>(optimizer.given[i].kind), 0);
    out.u64(optimizer.given[i].bits);
    out.u64(optimizer.now[i].bits);
  }
}
inline void write_parameter(CheckedWriter& out, ParameterShape const& shape,
                            ParameterState const& parameter) {
  out.u32(static_cast<std::uint32_t>(shape.type), static_cast<std::uint32_t>(shape.name.size()));
  out.u64(shape.rows ? *shape.rows + 1 : 0);
  for (std::uint64_t const bytes : block_bytes_of(shape)) out.u64(bytes);
  out.text(shape.name);
  for (auto const& block : blocks_of(parameter)) out.block(block);
}

// The fields of a checkpoint and the positions of its blocks; every offset is checked.
struct ParsedCheckpoint {
  struct Entry {
    std::string name;
    std::uint32_t type = 0;
    std::uint64_t rows = 0;  // 0: unknown, else one more
    std::array<std::uint64_t, 3> sizes{};
    std::array<std::uint64_t, 3> blocks{};
  };
  CheckpointState state;
  OptimizerRecord optimizer;
  std::vector<Entry> entries;
};

inline ParsedCheckpoint parse_checkpoint(CheckedReader& in) {
  if (in.text(checkpoint_magic.size()) != checkpoint_magic)
    in.refuse("does not begin with the 8 bytes that identify a checkpoint");
  std::uint32_t const version = in.u32();
  if (version < 1 || version > checkpoint_version)
    in.refuse(text("has version ", version, " of the format, this program reads versions 1 to ",
                   checkpoint_version));
  std::uint32_t const count = in.u32();
  std::uint64_t const size = in.u64();
  if (size != in.size())
    in.refuse(text("has ", in.size(), " bytes instead of ", std::to_string(size)));
  in.check_sum();
  ParsedCheckpoint parsed;
  parsed.state.step = static_cast<std::int64_t>(in.u64());
  if (parsed.state.step < 0 || parsed.state.step > last_step)
    in.refuse(text("is of step ", parsed.state.step));
  parsed.state.seed = in.u64();
  std::uint64_t const model = in.u64();
  std::uint64_t const settings = in.u64();
  std::uint64_t const name = version == 1 ? 0 : in.u64();
  std::uint64_t const numbers = version == 1 ? 0 : in.u64();
  parsed.state.model = in.text(model);
  parsed.state.settings = in.text(settings);
  parsed.optimizer.name = in.text(name);
  for (std::uint64_t i = 0; i < numbers; ++i) {
    std::uint32_t const kind = in.u32();
    if (kind > static_cast<std::uint32_t>(PolicyNumber::Kind::natural) || in.u32() != 0)
      in.refuse("has a number of the optimizer of an unknown kind");
    auto const bits = in.u64();
    parsed.optimizer.given.push_back({static_cast<PolicyNumber::Kind>(kind), bits});
    parsed.optimizer.now.push_back({static_cast<PolicyNumber::Kind>(kind), in.u64()});
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    ParsedCheckpoint::Entry entry;
    entry.type = in.u32();
    std::uint32_t const length = in.u32();
    if (version > 2) entry.rows = in.u64();
    for (auto& bytes : entry.sizes) bytes = in.u64();
    entry.name = in.text(length);
    for (std::size_t b = 0; b < entry.sizes.size(); ++b) entry.blocks[b] = in.block(entry.sizes[b]);
    parsed.entries.push_back(std::move(entry));
  }
  in.finish();
  return parsed;
}

// Throws unless the checkpoint fits the model.
inline void check_model(ParsedCheckpoint const& parsed, std::string_view model,
                        List<ParameterShape> const& shapes, std::string const& path, Restore what) {
  auto const refuse = [&](std::string const& difference) {
    raise(Errc::mismatch, "the checkpoint ", path, " belongs to another model: ", difference,
          "; use the settings it was written with, or another folder");
  };
  if (parsed.state.model != model)
    refuse(text("it is of '", parsed.state.model, "', this is '", model, "'"));
  if (parsed.entries.size() != shapes.size())
    refuse(text("it has ", parsed.entries.size(), " parameters, this model has ", shapes.size()));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    auto const& entry = parsed.entries[i];
    auto const& shape = shapes[i];
    if (entry.name != shape.name)
      refuse(text("parameter ", i, " is '", entry.name, "' there, here '", shape.name, "'"));
    if (entry.type != static_cast<std::uint32_t>(shape.type))
      refuse("parameter '" + shape.name + "' has another element type there");
    auto const bytes = block_bytes_of(shape);
    if (entry.sizes[0] != bytes[0])
      refuse(text("parameter '", shape.name, "' has ", std::to_string(entry.sizes[0]),
                  " bytes there, here ", bytes[0]));
    for (std::size_t b = 1; b < bytes.size() && what != Restore::values; ++b)
      if (entry.sizes[b] != bytes[b])
        raise(Errc::mismatch, "the checkpoint ", path, " was written with another optimizer",
              parsed.optimizer.name.empty() ? std::string() : ", " + words_of(parsed.optimizer),
              ": the optimizer's state of '", shape.name, "' has ", entry.sizes[b],
              " bytes there, here ", bytes[b],
              "; give it that one, or take the values alone, as for predictions: Restore::values");
  }
}

// Throws where a parameter is another matrix than when its state was made, if that matters.
// @return whether it can be known
inline bool check_rows(ParsedCheckpoint const& parsed, OptimizerRecord const& here,
                       List<ParameterShape> const& shapes, std::string const& path) {
  bool known = true;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (here.element_wise || shapes[i].states == 0) continue;
    std::uint64_t const rows = parsed.entries[i].rows;
    if (rows == 0 || !shapes[i].rows) known = false;
    if (rows == 0 || !shapes[i].rows || rows == *shapes[i].rows + 1) continue;
    raise(
        Errc::mismatch, "the checkpoint ", path, " has the state of '", shapes[i].name, "' with ",
        counted(rows - 1, "row"), ", here Parameter::matrix gives it ", *shapes[i].rows,
        ", where the optimizer ", here.name,
        " takes parameters whole; declare it as there, or take the values alone: Restore::values");
  }
  return known;
}

}  // namespace detail

/// A folder with the last two checkpoints of a run.
///
/// A checkpoint is written to a temporary file, synced and renamed, then the folder is synced:
/// whenever the process or the machine stops, the folder holds the checkpoints before or after,
/// never a part of one. One program at a time writes: of two, each removes what the other has
/// written, though no file is ever damaged. Any number may read.
class Checkpoints {
 public:
  /// Creates the folder if it is missing, and tries to write into it.
  /// @throws Error  with Errc::io if that cannot be done
  explicit Checkpoints(std::string folder) : folder_(std::move(folder)) {
    detail::make_writable_folder(folder_, "checkpoints");
  }

  /// The steps of all files that are named like checkpoints, newest first.
  [[nodiscard]] std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> all;
    for (std::string const& name : detail::names_in(folder_))
      if (std::int64_t const step = detail::step_of(name); step >= 0) all.push_back(step);
    std::sort(all.rbegin(), all.rend());
    return all;
  }

  [[nodiscard]] std::string path(std::int64_t step) const {
    std::string digits = std::to_string(step);
    if (digits.size() < 9) digits.insert(0, 9 - digits.size(), '0');
    return text(folder_, "/", detail::checkpoint_prefix, digits, detail::checkpoint_suffix);
  }

  /// Writes a checkpoint. Of the others only the previous one is kept, so that a run which has gone
  /// back after a damaged file does not keep the abandoned steps.
  /// @throws Error  with Errc::io, or bad_configuration unless 0 <= step <= 2^48; the checkpoints
  ///                that existed before still exist
  void write(CheckpointState const& state, std::span<ParameterState const> parameters) const {
    write(
        state, {}, detail::shapes_of(parameters),
        [&](auto const& add) {
          for (auto const& parameter : parameters) add(parameter);
          return true;
        },
        [] {});
  }
  /// Writes a checkpoint of a trainer, one parameter after the other, with the name and the numbers
  /// of its optimizer. Over processes all call it, and process 0 writes without ever having the
  /// whole model in memory.
  /// @tparam Train  a Trainer
  /// @throws Error  also mismatch unless the state's step is that of the trainer, in the process that
  ///                writes; the other processes' states are not looked at; bad_configuration if a
  ///                layer keeps its own weights
  template <class Train>
    requires requires(Train& train) { train.parameter_shapes(); }
  void write(CheckpointState const& state, Train& train) const {
    require_all_stored(train.keeps_weights());
    write(
        state, detail::optimizer_record(train.given_optimizer(), train.optimizer()),
        train.parameter_shapes(), [&](auto const& add) { return train.each_parameter(0, add); },
        [&] { require_taken(state.step, train.steps()); });
  }

  /// Reads the newest checkpoint that is whole into `parameters`. Nothing is changed before
  /// everything is checked. Blocks are then read one after the other, so only a disk error at that
  /// point leaves some parameters changed. The optimizer is not compared, only the size of its
  /// state, and the step is for the caller to take over.
  /// @param model  must be what `write` was given
  /// @param what   everything and other_optimizer are the same here
  /// @throws Error  with Errc::io if there is none, Errc::bad_data if none is whole, Errc::mismatch
  ///                if the newest whole one belongs to another model; parameters are then as before
  [[nodiscard]] RestoredCheckpoint restore(std::string_view model,
                                           std::span<ParameterState const> parameters,
                                           Restore what = Restore::everything) const {
    return restore(model, detail::shapes_of(parameters), parameters, what, nullptr,
                   [](detail::OptimizerRecord const&) { return true; });
  }
  /// Likewise into those parameters of a trainer that this process has; over processes, call
  /// Trainer::prepare first. The trainer is then at the step of the checkpoint, and its optimizer
  /// has the numbers of that step. Until all is read, other threads' steps are refused.
  /// @throws Error  also mismatch for another optimizer, or one that was given other numbers, unless
  ///                `what` allows it; bad_configuration for a worker, which takes its weights from a
  ///                server, if a layer keeps its own weights, and while a step runs
  template <class Train>
    requires requires(Train& train) { train.parameter_shapes(); }
  [[nodiscard]] RestoredCheckpoint restore(std::string_view model, Train& train,
                                           Restore what = Restore::everything) const {
    namespace feature = detail::feature;
    require_rule(detail::Rule::restored_worker,
                 feature::restores.with(feature::server, !train.staleness().empty()));
    require_all_stored(train.keeps_weights());
    RestoredCheckpoint restored;
    train.restore_parameters([&](auto const& shapes, auto const& parameters, auto& optimizer) {
      auto const here = detail::optimizer_record(train.given_optimizer(), optimizer);
      restored = restore(model, shapes, parameters, what, &here,
                         [&](detail::OptimizerRecord const& there) {
                           return detail::set_numbers(optimizer, there.now);
                         });
      return what == Restore::values ? 0 : restored.state.step;
    });
    return restored;
  }

 private:
  [[gnu::cold]] static void require_taken(std::int64_t step, std::int64_t taken) {
    if (step != taken)
      raise(Errc::mismatch, "the checkpoint is said to be of step ", step,
            ", where the trainer has taken ", counted(taken, "step"),
            "; give CheckpointState::step what Trainer::steps says, with which it goes on");
  }
  [[gnu::cold]] static void require_all_stored(bool own_weights) {
    namespace feature = detail::feature;
    require_rule(detail::Rule::own_weights_stored,
                 feature::restores.with(feature::own_weights, own_weights));
  }
  /// @param each   calls its argument with every parameter; returns whether this process writes
  /// @param check  called by the process that writes before it does, while the parameters are held
  template <class Each, class Check>
  void write(CheckpointState const& state, detail::OptimizerRecord const& optimizer,
             List<ParameterShape> const& shapes, Each const& each, Check const& check) const {
    // No name of a file would say that it is below 0, and all others would be removed.
    detail::require_step(state.step, "a checkpoint cannot be of");
    std::optional<detail::CheckedWriter> out;
    auto const begin = [&] {
      check();
      out.emplace(path(state.step));
      detail::write_head(*out, state, optimizer, shapes);
    };
    std::size_t next = 0;
    if (!each([&](ParameterState const& parameter) {
          if (!out) begin();
          detail::write_parameter(*out, shapes[next++], parameter);
        }))
      return;
    if (!out) begin();
    out->commit();
    detail::remove_other_checkpoints(folder_, state.step);
  }
  /// @param here  the optimizer that goes on; null: unknown
  /// @param set   called with the optimizer that wrote the checkpoint, takes over its numbers.
  ///              @return whether it could
  template <class Set>
  [[nodiscard]] RestoredCheckpoint restore(std::string_view model,
                                           List<ParameterShape> const& shapes,
                                           std::span<ParameterState const> parameters, Restore what,
                                           detail::OptimizerRecord const* here,
                                           Set const& set) const {
    auto const found = steps();
    if (found.empty())
      raise(Errc::io, "the folder ", folder_,
            " holds no checkpoint; start without resuming, or name another");
    RestoredCheckpoint restored;
    for (std::int64_t const step : found) {
      restored.file = path(step);
      try {
        detail::CheckedReader in(restored.file, "the checkpoint");
        auto const parsed = detail::parse_checkpoint(in);
        bool const known = here != nullptr && !parsed.optimizer.name.empty();
        detail::check_model(parsed, model, shapes, restored.file, what);
        if (known && what == Restore::everything)
          detail::require_optimizer(parsed.optimizer, *here, restored.file);
        if (known && what == Restore::everything &&
            !detail::check_rows(parsed, *here, shapes, restored.file))
          restored.warnings.push_back(
              restored.file +
              " does not say how many rows its matrices have, so that none were compared");
        if (known && what == Restore::everything && !set(parsed.optimizer))
          raise(Errc::mismatch, "the numbers of the optimizer ", here->name,
                " have changed in the run that wrote ", restored.file,
                ", and cannot be set; let its fields() return std::tie of members");
        if (known && what == Restore::everything && !here->tells)
          restored.warnings.push_back(
              text("the optimizer ", here->name, " does not tell its numbers, so that none of ",
                   restored.file,
                   " was compared or restored; let its fields() return std::tie of "
                   "them"));
        if (!known && here != nullptr && what == Restore::everything)
          restored.warnings.push_back(text(
              restored.file, " does not say which optimizer wrote it, so that none was compared"));
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          auto const blocks = detail::blocks_of(parameters[i]);
          for (std::size_t b = 0; b < blocks.size(); ++b)
            if (b == 0 || what != Restore::values)
              in.read(parsed.entries[i].blocks[b], blocks[b]);
            else
              std::fill(blocks[b].begin(), blocks[b].end(), std::byte{});
        }
        restored.state = parsed.state;
        return restored;
      } catch (Error const& error) {
        if (error.code() != Errc::bad_data && error.code() != Errc::io) throw;
        restored.warnings.emplace_back(error.what());
      }
    }
    raise(Errc::bad_data, restored.warnings.front(), "; no other checkpoint in ", folder_,
          " is whole: remove the folder and start again");
  }

  std::string folder_;
};

}  // namespace stagger
