package schema

// itemSizes holds the bytes an element of torch's dtypes, by name without "torch.".
var itemSizes = map[string]uint64{
	"bool": 1, "uint8": 1, "int8": 1, "bits8": 1, "bits1x8": 1, "bits2x4": 1, "bits4x2": 1,
	"quint8": 1, "qint8": 1, "quint4x2": 1, "quint2x4": 1,
	"float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
	"float4_e2m1fn_x2": 1,
	"uint1":            1, "uint2": 1, "uint3": 1, "uint4": 1, "uint5": 1, "uint6": 1, "uint7": 1,
	"int1": 1, "int2": 1, "int3": 1, "int4": 1, "int5": 1, "int6": 1, "int7": 1,
	"int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "bits16": 2,
	"int32": 4, "uint32": 4, "float32": 4, "qint32": 4, "complex32": 4,
	"int64": 8, "uint64": 8, "float64": 8, "complex64": 8,
	"complex128": 16,
}

// ItemSize returns the bytes an element of a dtype takes, or 0 when this version does not know the dtype.
func ItemSize(dtype string) uint64 { return itemSizes[dtype] }
