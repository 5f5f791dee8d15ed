#include "json_tree.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "terrace/core/error.h"
#include "terrace/core/excerpt.h"

namespace terrace::config {
namespace {

/// Sections that may lie in each other; a configuration has four. The tree is taken down by
/// recursion.
constexpr std::size_t kDepthMax = 64;

/// Reads characters and counts the lines that have been read.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, int* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    if (*at_ == '\n') ++*line_;
    ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    const CountingIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at_ == b.at_;
  }
  friend bool operator!=(const CountingIterator& a, const CountingIterator& b) { return !(a == b); }

 private:
  const char* at_;
  int* line_;
};

/// Builds the tree from the parser's events. When an event arrives the parser has read up to the
/// end of that token, and for a number one character more: so a member takes the line of its key.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(std::string name, const int& line) : name_(std::move(name)), line_(line) {}

  JsonNode root;

  bool null() override { return put(JsonNode{}); }
  bool boolean(bool value) override {
    return put(JsonNode{.kind = JsonNode::Kind::boolean, .boolean = value});
  }
  bool number_integer(std::int64_t value) override {
    return put(JsonNode{
        .kind = JsonNode::Kind::integer, .integer = value, .number = static_cast<double>(value)});
  }
  bool number_unsigned(std::uint64_t value) override {
    if (value <= std::numeric_limits<std::int64_t>::max()) {
      return number_integer(static_cast<std::int64_t>(value));
    }
    return number_float(static_cast<double>(value), "");
  }
  bool number_float(double value, const std::string& /*digits*/) override {
    return put(JsonNode{.kind = JsonNode::Kind::number, .number = value});
  }
  bool string(std::string& value) override {
    return put(JsonNode{.kind = JsonNode::Kind::text, .text = std::move(value)});
  }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*elements*/) override { return open(JsonNode::Kind::object); }
  bool start_array(std::size_t /*elements*/) override { return open(JsonNode::Kind::array); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& value) override {
    require(value.size() <= kExcerptBytesMax, ErrorKind::usage,
            "{} line {}: there is a key of {} bytes (\"{}\"), and no key is so long", name_, line_,
            value.size(), excerpt(value));
    JsonNode& object = open_.back();
    const auto found = std::find(object.names.begin(), object.names.end(), value);
    if (found != object.names.end()) {
      const auto index = static_cast<std::size_t>(found - object.names.begin());
      fail(ErrorKind::usage, "{} line {}: \"{}\" is given twice (first in line {}): remove one",
           name_, line_, value, object.items[index].line);
    }
    object.names.push_back(value);
    key_lines_.back() = line_;
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& last_token,
                   const nlohmann::json::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow && !open_.empty() && !open_.back().names.empty()) {
      fail(ErrorKind::usage, "{} line {}: {} is {}, which is too large for a number", name_, line_,
           open_.back().names.back(), excerpt(last_token));
    }
    // "[json.exception...] parse error at line 3, column 1: syntax error ..."
    std::string reason = error.what();
    std::string place = fmt::format("line {}", line_);
    const auto position = reason.find("line ");
    const auto syntax = reason.find(": syntax error");
    if (position < syntax && syntax != std::string_view::npos) {
      place = reason.substr(position, syntax - position);
      reason.erase(0, syntax + 2);
      // After a number that ends its line the parser has lost its column.
      if (place.ends_with(", column 0")) place.resize(place.rfind(','));
    }
    // It quotes the token, of any length, as this sentence does.
    for (const char* quote : {"; last read: '{}'", " parsing '{}'"}) {
      const std::string token = fmt::format(fmt::runtime(quote), last_token);
      if (const auto at = reason.find(token); at != std::string::npos) {
        reason.erase(at, token.size());
      }
    }
    fail(ErrorKind::usage, "{} {}: not valid JSON near '{}': {}", name_, place, excerpt(last_token),
         reason);
  }

 private:
  bool open(JsonNode::Kind kind) {
    const int line = key_line();
    require(open_.size() < kDepthMax, ErrorKind::usage,
            "{} line {}: more than {} lists or objects lie in each other, and no configuration is "
            "so deep",
            name_, line_, kDepthMax);
    open_.push_back(JsonNode{.kind = kind, .line = line});
    key_lines_.push_back(0);
    return true;
  }

  bool close() {
    JsonNode done = std::move(open_.back());
    open_.pop_back();
    key_lines_.pop_back();
    attach(std::move(done));
    return true;
  }

  bool put(JsonNode node) {
    node.line = key_line();
    attach(std::move(node));
    return true;
  }

  void attach(JsonNode node) {
    if (open_.empty()) {
      root = std::move(node);
    } else {
      open_.back().items.push_back(std::move(node));
    }
  }

  [[nodiscard]] int key_line() const {
    return key_lines_.empty() || key_lines_.back() == 0 ? line_ : key_lines_.back();
  }

  std::string name_;
  const int& line_;
  std::vector<JsonNode> open_;
  std::vector<int> key_lines_;  // of the latest key of each open object, 0 in an array
};

}  // namespace

std::string JsonNode::describe() const {
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::boolean:
    case Kind::array:
    case Kind::object:
      return kind == Kind::boolean ? scalar_text() : kind == Kind::array ? "a list" : "an object";
    case Kind::integer:
    case Kind::number:
      return fmt::format("the number {}", scalar_text());
    case Kind::text:
      return fmt::format("the string \"{}\"", excerpt(text));
  }
  return "";
}

std::string JsonNode::scalar_text() const {
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return boolean ? "true" : "false";
    case Kind::integer:
      return fmt::format("{}", integer);
    case Kind::number:
      return fmt::format("{}", number);
    case Kind::text:
      return text;
    case Kind::array:
      return "[...]";
    case Kind::object:
      return "{...}";
  }
  return "";
}

JsonNode parse_json(std::string_view text, const std::string& name) {
  int line = 1;
  TreeBuilder builder(name, line);
  nlohmann::json::sax_parse(CountingIterator(text.data(), &line),
                            CountingIterator(text.data() + text.size(), &line), &builder);
  return std::move(builder.root);
}

}  // namespace terrace::config
