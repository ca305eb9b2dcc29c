"""The job library: one module per job, with the job under the module's own name."""
