"""The message type `protobuf`: messages parsed by a descriptor set or a registry's schema, or bytes."""

from __future__ import annotations

from processor.codec.contract import Codec, CodecOptions, not_installed
from processor.codec.value_checks import depth_limit
from processor.config import SchemaConfig
from processor.errors import ConfigurationError, unknown_name
from processor.record import Value

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import DecodeError

    from processor.codec.protobuf.messages import BytesCodec, DeltaCodec, WholeCodec, implicit_fields
except ImportError as error:
    raise not_installed("protobuf", error) from error


def protobuf_codec(options: CodecOptions | None = None) -> Codec:
    """The message type `protobuf`, with deltas if the message of the option `schema` allows them.

    `schema: {file: DESCRIPTOR_SET, message: full.Name}` makes a record an object of fields by name; without it, a
    record is the bytes. A message whose scalar fields all have presence can do deltas; any other one, and bytes, are
    published whole. A Confluent frame is skipped; the schema that it names is not asked for.

    `schema: {subject: NAME, message: full.Name}` takes the schema from a registry: then a frame is needed, and checked,
    and records and deltas have one.

    Raises:
        ConfigurationError: the file is no descriptor set, or the message is not in it; the same of a subject.
        Stop: the registry does not answer.
    """
    options = options or CodecOptions()
    max_depth = depth_limit(options.max_depth, "protobuf")
    if options.schema is None:
        return BytesCodec()
    has_content = any((options.schema.file, options.schema.text, options.schema.base64))
    if options.schema.subject is not None and not has_content:
        return _registered(options)
    if not has_content or options.schema.message is None:
        raise ConfigurationError("schema: protobuf takes {file: DESCRIPTOR_SET, message: full.Name} or {subject: NAME}")
    make = _message_class(options.schema, options.schema.message)
    return (WholeCodec if implicit_fields(make.DESCRIPTOR) else DeltaCodec)(make, max_depth)


def _registered(options: CodecOptions) -> Codec:
    try:
        from processor.codec.protobuf.registered import registered_codec  # noqa: PLC0415 - needs the registry's client
    except ImportError as error:
        raise ConfigurationError(
            f"a schema registry needs a package that is not installed ({error.name}): pip install 'sowstream[protobuf]'"
        ) from None
    return registered_codec(options)


def _message_class(schema: SchemaConfig, name: str) -> Value:
    """The class of the messages of one type in a descriptor set."""
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    how = "make it with protoc --include_imports --descriptor_set_out"
    try:
        files.ParseFromString(schema.content() or b"")
        for proto in files.file:
            pool.Add(proto)
    except OSError as error:
        raise ConfigurationError(f"schema: {schema.place}: {error.strerror}; {how}") from None
    except (DecodeError, TypeError) as error:
        raise ConfigurationError(f"schema: {schema.place} is no complete descriptor set: {error}; {how}") from None
    try:
        descriptor = pool.FindMessageTypeByName(name)
    except KeyError:
        known = [f"{proto.package}.{kind.name}".lstrip(".") for proto in files.file for kind in proto.message_type]
        raise ConfigurationError(f"schema: {schema.place}: {unknown_name('message', name, known)}") from None
    return message_factory.GetMessageClass(descriptor)


def contradiction(former: SchemaConfig, present: SchemaConfig) -> tuple[str, str] | None:
    """Compare two schemas with descriptor sets, as messages of the former one are to be read by the present one.

    Returns:
        The first field that would be read as something else, as `int32 qty = 3`, of each schema: its number has another
        type, or its name another number. None if there is none; a removed field stays in its messages, by its number.

    Raises:
        ConfigurationError: one of them is no descriptor set with its message.
    """
    types = [_message_class(each, each.message or "").DESCRIPTOR for each in (former, present)]
    return _contradiction(types[0], types[1], set())


def _contradiction(former: Descriptor, present: Descriptor, seen: set[str]) -> tuple[str, str] | None:
    seen.add(former.full_name)
    for field in former.fields:
        same = present.fields_by_number.get(field.number)
        for other in (same, present.fields_by_name.get(field.name)):
            if other is not None and _form(other) != _form(field):
                return _declaration(field), _declaration(other)
        if same is None:
            continue
        found = None
        if field.enum_type is not None:
            numbers = same.enum_type.values_by_name
            moved = (each for each in field.enum_type.values if numbers.get(each.name, each).number != each.number)
            found = next(
                ((f"{each.name} = {each.number}", f"{each.name} = {numbers[each.name].number}") for each in moved), None
            )
        elif field.message_type is not None and field.message_type.full_name not in seen:
            found = _contradiction(field.message_type, same.message_type, seen)
        if found is not None:
            return found
    return None


def _form(field: FieldDescriptor) -> tuple[int, int, bool]:
    return field.number, field.type, field.is_repeated


def _declaration(field: FieldDescriptor) -> str:
    """A field as a .proto file has it, without options."""
    named = field.message_type or field.enum_type
    kind = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    repeated = "repeated " if field.is_repeated else ""
    return f"{repeated}{named.full_name if named else kind} {field.name} = {field.number}"
