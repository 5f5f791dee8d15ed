#pragma once

namespace terrace::tools {

/// Sees to it that descriptors 0 to 2 are nothing but standard input, output and error, before
/// anything is opened: one that is closed would be given to the next file, a lock or a page store,
/// and log lines would go into it. What was closed fails with EBADF as before. A pipe that nobody
/// reads any more is an error of the write from now on, and no signal that ends the program.
void hold_standard_descriptors();

}  // namespace terrace::tools
