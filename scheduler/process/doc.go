// Package process is the Runner of `bivouac dev`: it runs sandboxes as local processes, one
// agent server each, below one directory.
//
//	<dir>/.lock                  held while a Runner uses the directory
//	<dir>/<id>/state.json        the job's persistent state
//	<dir>/<id>/workspace/        the workspace, kept over a pause
//	<dir>/<id>/logs/stdout.log   the task's output, bounded; likewise stderr.log
//
// It keeps Nomad's semantics: a job has a modify index that Start enforces and versions to
// revert to. A stopped job stays with its workspace until it is removed. Unlike Nomad it does
// not outlive its program: Close stops every sandbox, and a killed program takes its sandboxes
// with it. The next New finds leftover processes by their mark and kills them. A job without
// its process counts as stopped, so the scheduler starts it again.
//
// There is no isolation: a sandbox is an ordinary process of the same user, without limits on
// CPU, memory or files. It is for development. Linux only.
package process
