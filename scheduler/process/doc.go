// Package process is the Runner of `bivouac dev`: it runs sandboxes as local
// processes, one agent server each, below one directory.
//
//	<dir>/.lock                  held while a Runner uses the directory
//	<dir>/<id>/state.json        the job: what the backend must not forget
//	<dir>/<id>/workspace/        the workspace, kept over a pause
//	<dir>/<id>/logs/stdout.log   the task's output, bounded; likewise stderr.log
//
// It keeps Nomad's semantics: a job has a modify index that Start enforces,
// versions to revert to, and stays, stopped, with its workspace until it is
// removed. Unlike Nomad it does not outlive its program: Close stops every
// sandbox, a program that is killed takes its sandboxes along, and what is left
// over all the same is found by its mark and killed when the directory is used
// again. A job found without its process counts as stopped, so the scheduler
// starts it again.
//
// There is no isolation: a sandbox is an ordinary process of the same user,
// without limits on CPU, memory or files. It is for development. Linux only.
package process
