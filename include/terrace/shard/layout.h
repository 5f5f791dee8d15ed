#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "terrace/core/indexed.h"

// Pure arithmetic: which element of which flat parameter belongs to which tensor and which rank.

namespace terrace::shard {

/// Every tensor in a flat starts at a multiple of this many elements, and a rank's shard too, so
/// that vector loads and direct I/O meet aligned addresses in every dtype.
inline constexpr std::int64_t kAlignmentElements = 128;

/// Elements [first, first + count) of a flat.
struct Range {
  std::int64_t first = 0;
  std::int64_t count = 0;
  [[nodiscard]] std::int64_t end() const { return first + count; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// What a layout needs to know of a model.
struct ModelShape {
  struct Parameter {
    std::int64_t elements = 0;
    bool is_matrix = false;
  };
  Indexed<Parameter> parameters;
  /// The parameters of each unit, in forward order; a tied weight is in each unit that uses it.
  Indexed<std::vector<int>> units;
};

/// The shape of a `model::Model`, which this layer does not know: of anything whose `parameters()`
/// have `elements()` and `is_matrix`, and whose `units()` have `parameters`.
template <class Model>
[[nodiscard]] ModelShape shape_of(const Model& model) {
  ModelShape shape;
  for (const auto& parameter : model.parameters()) {
    shape.parameters.push_back({parameter.elements(), parameter.is_matrix});
  }
  for (const auto& unit : model.units()) shape.units.push_back(unit.parameters);
  return shape;
}

/// Where one tensor lies in its flat.
struct TensorPlace {
  int parameter = 0;  ///< index into `ModelShape::parameters`
  Range range;        ///< without the padding behind it
};

/// The parameters of one unit and one group (decayed or not) end to end, padded so that it splits
/// into equal aligned shards. A tied weight is a flat of its own.
struct Flat {
  int id = 0;
  int unit = 0;  ///< the first unit, in forward order, that uses it
  bool decayed = false;
  bool tied = false;  ///< used by more than one unit
  std::int64_t elements = 0;
  std::vector<TensorPlace> tensors;  ///< ascending
};

/// Where a parameter lies.
struct ParameterPlace {
  int flat = 0;
  Range range;
};

/// All flats of a model for one world size, in forward order of their first use. Padding elements
/// belong to no tensor; they stay zero, are in no norm and in no checkpoint.
class Layout {
 public:
  /// `decay_all`: norms and biases decay too.
  Layout(const ModelShape& model, int world_size, bool decay_all = false);

  [[nodiscard]] int world_size() const { return world_size_; }
  [[nodiscard]] std::span<const Flat> flats() const { return flats_; }
  [[nodiscard]] const Flat& flat(int id) const { return flats_[id]; }
  /// The flats that a unit's computation needs, ascending.
  [[nodiscard]] std::span<const int> flats_of_unit(int unit) const { return flats_of_unit_[unit]; }
  [[nodiscard]] const ParameterPlace& place(int parameter) const { return places_[parameter]; }
  /// The part of a flat that `rank` owns.
  [[nodiscard]] Range shard(int flat, int rank) const;
  /// Sum over the flats, padding included.
  [[nodiscard]] std::int64_t elements() const;

 private:
  int world_size_;
  Indexed<Flat> flats_;
  Indexed<std::vector<int>> flats_of_unit_;
  Indexed<ParameterPlace> places_;
};

}  // namespace terrace::shard
