// Package archive writes a directory as a stream and makes a directory of such a stream. It runs in
// a task on the client that has the directory, whose content a sandbox wrote: nothing in it is
// trusted. A stream is a tar with one record at its end that proves that it is whole.
package archive
