#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "subcommand.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/train/inference.h"

namespace terrace::tools {
namespace {

constexpr std::array<std::string_view, 6> kSettings = {"model", "max_length",  "dtype",
                                                       "bf16",  "host_memory", "threads"};

bool is_file(int descriptor) {
  struct ::stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

/// Says on a terminal how far a text is that is written to a file. Of a pipe nobody knows whether
/// its other end shows the text.
class TextProgress {
 public:
  TextProgress(train::Terminal& terminal, std::int64_t tokens_max)
      : terminal_(terminal),
        tokens_max_(tokens_max),
        is_shown_(terminal.rewrites() && is_file(STDOUT_FILENO)) {}

  /// One more is written.
  void add_token() {
    const std::int64_t now = now_us();
    // The first has no other before it to be timed from.
    if (tokens_++ > 0) time_left_.add_step(static_cast<double>(now - last_us_) * 1e-6);
    last_us_ = now;
    if (is_shown_ && tokens_ > 1) {
      terminal_.progress(train::generation_line(tokens_, tokens_max_, time_left_));
    }
  }

 private:
  train::Terminal& terminal_;
  std::int64_t tokens_max_;
  bool is_shown_;
  std::int64_t tokens_ = 0;
  std::int64_t last_us_ = 0;
  train::TimeLeft time_left_;
};

}  // namespace

int run_generate(Context& context, const Arguments& arguments) {
  config::Settings settings;
  train::GenerateOptions options;
  std::int64_t seed = 42;
  config::OptionTable table;
  add_settings(table, settings, kSettings);
  table.group("Text");
  table.add({.flags = {"prompt"},
             .field = config::field(options.prompt),
             .help = "text to go on from; empty: the beginning of a document",
             .free_text = true});
  table.add({.flags = {"max_new_tokens"},
             .field = config::field(options.tokens_max),
             .help = "how much to write",
             .unit = "tokens",
             .minimum = 1});
  table.add({.flags = {"temperature"},
             .field = config::field(options.temperature),
             .help = "how freely tokens are drawn; 0: always the likeliest",
             .minimum = 0});
  table.add({.flags = {"top_k"},
             .field = config::field(options.top_k),
             .help = "draw among the likeliest; 0: among all",
             .unit = "tokens",
             .minimum = 0});
  table.add(
      {.flags = {"seed"}, .field = config::field(seed), .help = "of the draws", .maximum = 0x1p63});
  table.add({.flags = {"stop_at_end"},
             .field = config::field(options.stop_at_end),
             .help = "stop where the model ends its text"});
  if (!parse(context, table, "terrace generate --model DIR --prompt TEXT [OPTION ...]",
             arguments)) {
    return 0;
  }
  require(!settings.model.empty(), ErrorKind::usage,
          "--model is missing: give a model folder, a checkpoint or the output folder of a run");
  options.seed = static_cast<std::uint64_t>(seed);
  TextProgress progress(context.terminal, options.tokens_max);
  bool prompt_is_out = false;  // nothing is written before the model is known to be sound
  Attention attention(context);
  const auto take = [&](std::string_view text) {
    if (!prompt_is_out) print(options.prompt, attention.interrupt, "generating");
    prompt_is_out = true;
    print(text, attention.interrupt, "generating");
    progress.add_token();
  };
  train::generate(settings, options, attention.watch, context.log, take);
  context.terminal.finish();
  print("\n");
  return 0;
}

}  // namespace terrace::tools
