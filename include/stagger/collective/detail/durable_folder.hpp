// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A parameter server's layers on the disk, so that another process can go on with them.
///
/// The folder contains these files. Numbers are little-endian and have 8 bytes unless stated
/// otherwise:
///
/// | file | |
/// |---|---|
/// | lock | locked as long as a server uses the folder |
/// | server.stagger | options of the run, how many streams of each worker have failed |
/// | layer-000000.stagger and so on | the shape of a layer, and all of its state |
///
/// Both kinds of `.stagger` files begin with 8 bytes that identify the kind, the version of the
/// format (7) and the number of the layer with 4 bytes each, and the number of the run. They end
/// with the same checksum as checkpoints.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <stagger/collective/detail/same_workers.hpp>
#include <stagger/core/checked_file.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/state_file.hpp>

namespace stagger::collective::detail {

/// The options and the state of a server's run that no layer has.
struct ServerRecord {
  std::uint64_t run = 0;  ///< random; identifies this run
  std::string name{};     ///< as ServerOptions::run
  bool goes_on = false;   ///< as OnFailure::go_on
  bool averages = false;  ///< as ServerOptions::average_changes
  WrittenRules rules{};
  int states = 0;  ///< states of the optimizer that the server applies
  std::size_t layers = 0;
  List<double> weights{};          ///< [workers]
  List<std::uint32_t> failures{};  ///< [workers] how many streams ended by a failure

  /// By how much a worker multiplies its changes before it pushes them.
  [[nodiscard]] double change_factor(int worker) const { return averages ? weights[worker] : 1; }
  /// @param file  a StateWriter or a StateReader
  template <class File> void keep(File& file) {
    auto pushed = static_cast<unsigned>(rules.pushes);
    auto added = static_cast<unsigned>(rules.adds);
    std::size_t workers = weights.size();
    file.text(name);
    file.numbers(goes_on, averages, rules.push_minibatches, pushed, added, rules.ahead, states,
                 layers, workers);
    file.require(pushed <= static_cast<unsigned>(staleness::Pushes::weights_and_state) &&
                 added <= static_cast<unsigned>(staleness::Adds::in_turn) && states <= 2);
    file.require_room(workers, 16);
    file.require_room(layers, 1);
    rules.pushes = static_cast<staleness::Pushes>(pushed);
    rules.adds = static_cast<staleness::Adds>(added);
    file.text(rules.optimizer);
    file.text(rules.late);
    file.text(rules.shared);
    weights.resize(workers);
    failures.resize(workers);
    for (double& weight : weights) file.real(weight);
    for (std::uint32_t& count : failures) file.numbers(count);
  }
};

/// The folder of one server. After a failed write nothing is written any more, so that the folder
/// keeps the state that was last acknowledged to the workers.
class DurableFolder {
 public:
  /// @throws Error  io if the folder cannot be written, or another server uses it
  [[gnu::cold]] explicit DurableFolder(std::string path)
      : path_(made(std::move(path))), lock_(text(path_, "/lock").c_str(), O_RDWR | O_CREAT) {
    if (!lock_) stagger::detail::throw_not_written("write into the folder", path_, errno);
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      raise(Errc::io, "the folder ", path_,
            " is used by another parameter server; end that one, or name another folder");
    for (std::string const& name : stagger::detail::names_in(path_)) {
      bool const own = name.starts_with(".layer-") || name.starts_with(".server.");
      if (own && name.ends_with(".tmp")) ::unlink(text(path_, "/", name).c_str());
    }
  }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  /// Whether the folder holds a run.
  [[nodiscard]] bool holds_run() const { return ::access(server_file().c_str(), F_OK) == 0; }

  /// @throws Error  io if a write has failed
  void require_sound() {
    std::lock_guard const lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  /// @throws Error  io, from the write that fails and from all later ones
  void write(ServerRecord& record) {
    write(server_file(), server_name, 0, record.run, [&](auto&, auto& file) { record.keep(file); });
  }
  template <class Layer> void write(std::size_t l, std::uint64_t run, Layer& layer) {
    write(layer_file(l), layer_name, l, run, [&](auto& out, auto& file) {
      write_shape(out, layer.shape());
      layer.keep(file);
    });
  }

  /// @throws Error  bad_data for files that are damaged or not of this version, io
  [[nodiscard]] [[gnu::cold]] ServerRecord read() const {
    ServerRecord record;
    read(server_file(), server_name, 0, [&](auto&, auto& file, std::uint64_t run) {
      record.keep(file);
      record.run = run;
    });
    return record;
  }
  /// @param make  callable that makes a layer with these parameters
  template <class Make>
  [[nodiscard]] [[gnu::cold]] auto read(std::size_t l, std::uint64_t run, Make make) const {
    decltype(make(std::declval<stagger::detail::LayerParameters const&>())) layer;
    if (::access(layer_file(l).c_str(), F_OK) != 0 && errno == ENOENT)
      raise(Errc::bad_data, "the folder ", path_,
            " of a parameter server is incomplete: it has no ",
            layer_file(l).substr(path_.size() + 1),
            "; put all of its files there, or name another folder, or remove this one and begin "
            "anew");
    read(layer_file(l), layer_name, l, [&](auto& in, auto& file, std::uint64_t own) {
      if (own != run) in.refuse(text("is of another run than ", server_file()));
      stagger::detail::LayerParameters like;
      like.adopt(read_shape(in), static_cast<int>(l), 0);
      layer = make(like);
      layer->keep(file);
    });
    return layer;
  }

 private:
  static constexpr std::string_view server_name = "stgrserv";
  static constexpr std::string_view layer_name = "stgrlayr";
  static constexpr std::uint32_t version = 7;

  [[nodiscard]] static std::string made(std::string path) {
    stagger::detail::make_writable_folder(path, "a parameter server");
    return path;
  }
  [[nodiscard]] std::string server_file() const { return text(path_, "/server.stagger"); }
  [[nodiscard]] std::string layer_file(std::size_t l) const {
    std::string const digits = std::to_string(l);
    return text(path_, "/layer-", std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0'),
                digits, ".stagger");
  }

  template <class Fill>
  void write(std::string const& path, std::string_view name, std::size_t number, std::uint64_t run,
             Fill fill) {
    require_sound();
    try {
      stagger::detail::CheckedWriter out(path);
      out.text(name);
      out.u32(version, static_cast<std::uint32_t>(number));
      out.u64(run);
      stagger::detail::StateWriter file(out);
      fill(out, file);
      out.commit();
    } catch (Error const& error) {
      std::lock_guard const lock(mutex_);
      failure_ = raised(error.code(), "the parameter server keeps nothing any more: ", error.what(),
                        ", and start it again");
      std::rethrow_exception(failure_);
    }
  }
  template <class Take>
  [[gnu::cold]] void read(std::string const& path, std::string_view name, std::size_t number,
                          Take take) const {
    try {
      stagger::detail::CheckedReader in(path, "the parameter server's file");
      if (in.text(name.size()) != name)
        in.refuse("does not begin with the 8 bytes that identify such a file");
      if (std::uint32_t const other = in.u32(); other != version)
        in.refuse(
            text("has version ", other, " of the format, this program reads version ", version));
      std::uint32_t const own = in.u32();
      in.check_sum();
      if (own != number) in.refuse(text("is of layer ", own));
      std::uint64_t const run = in.u64();
      stagger::detail::StateReader file(in);
      take(in, file, run);
      in.finish();
    } catch (Error const& error) {
      if (error.code() != Errc::bad_data) throw;
      raise(Errc::bad_data, error.what(),
            "; name another folder, or remove this one and begin anew");
    }
  }

  static void write_shape(stagger::detail::CheckedWriter& out,
                          stagger::detail::LayerShape const& shape) {
    out.u64(shape.count());
    for (std::size_t i = 0; i < shape.count(); ++i) {
      auto const& d = shape.declaration(i);
      out.u32(static_cast<std::uint32_t>(d.type), d.decays ? 1 : 0);
      out.u64(d.size);
      out.u64(d.rows);
      out.u64(d.name.size());
      out.text(d.name);
    }
  }
  [[nodiscard]] static List<stagger::detail::ParameterDeclaration> read_shape(
      stagger::detail::CheckedReader& in) {
    List<stagger::detail::ParameterDeclaration> declarations;
    std::uint64_t const count = in.u64();
    std::uint64_t bytes = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      stagger::detail::ParameterDeclaration d;
      std::uint32_t const type = in.u32();
      if (type > 1) in.refuse(text("has a parameter of the unknown type ", type));
      d.type = type == 0 ? ElementType::f32 : ElementType::f64;
      d.decays = in.u32() != 0;
      std::uint64_t const size = in.u64();
      if (size > in.size() || (bytes += size * element_bytes(d.type)) > in.size())
        in.refuse("is too short for its parameters");
      d.size = size;
      d.rows = in.u64();
      if (d.rows != 0 && d.size % d.rows != 0) in.refuse("has a matrix of unequal rows");
      std::uint64_t const name = in.u64();
      d.name = in.text(name);
      declarations.push_back(std::move(d));
    }
    return declarations;
  }

  std::string path_;
  stagger::detail::Descriptor lock_;
  std::mutex mutex_{};  // guards the next member
  std::exception_ptr failure_{};
};

}  // namespace stagger::collective::detail
